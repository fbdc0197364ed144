"""Everything that the code of one module call can observe, as one value that compares.

The walk starts at the module, its inputs, and what the executed code finds by name. Every object gets a
number when it is met first, so that two walks are equal only if the same things are shared. Whatever is of a
kind that is not known through and through raises `NotComparable`.
"""

from __future__ import annotations

import enum
import functools
import logging
import types
import weakref
from collections import OrderedDict, defaultdict, deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

from fakexport._torch.global_modes import hooks_of_all_modules
from fakexport._torch.observed_tensors import SymbolicNumber, known_sizes, tracing_paused
from fakexport.fake import MovedTensors

from .cache_parts import CachePart, cache_part
from .cached_functions import keeps_only_values
from .executed_code import ExecutedCode
from .known_libraries import is_trusted_file, why_module_is_unknown, why_name_is_unknown
from .observed_values import BUILT_IN, CONSTANTS, VALUES, NotComparable, TensorTokens, plain_token
from .positions import positions_of

_MOST_OBJECTS = 20_000
# What each member of an enumeration and each logger has.
_USUAL = {"_value_", "_name_", "__objclass__", "_sort_order_", "_inverted_", "manager"}
_USUAL |= vars(logging.Logger("usual")).keys()


# What takes the name of an attribute, which may be put together while the code runs.
_BY_NAME = frozenset({"getattr", "setattr", "delattr", "attrgetter"})
_DATA = (*VALUES, list, dict, set, tuple)


@dataclass(frozen=True)
class ObservedState:
    """What a call can observe.

    Args:
        tokens: Compare them with `==`.
        slots: Plain attributes of modules, which may differ if nothing reads them.
        tensors, numbers: What was met, in order.
        identities: Which object each number stands for: equal before and after a call that changed nothing.
        own: How many of the tokens are not of the trace itself.
        moved: How many tensors were moved between devices so far.
        positions: The different numbers that say where the module is.
        caches: What was met of caches: of each, only what is at these positions.
    """

    tokens: tuple[Any, ...]
    slots: tuple[tuple[nn.Module, str, Any], ...]
    tensors: tuple[torch.Tensor, ...] = field(repr=False)
    numbers: tuple[Any, ...] = field(repr=False)
    identities: tuple[int, ...] = field(repr=False)
    kept: tuple[Any, ...] = field(repr=False)
    own: int
    moved: int
    positions: tuple[int, ...]
    caches: tuple[CachePart, ...] = field(repr=False)


def observed_state(
    tracer: Any, module: nn.Module, args: Any, kwargs: Any, code: ExecutedCode, positions: frozenset[str]
) -> ObservedState:
    """Return what the call `module(*args, **kwargs)` can observe, given the code that such a call runs.

    Args:
        positions: Names of attributes that say where the module is.
    Raises:
        NotComparable: something of an unknown kind is reachable.
    """
    numbers = positions_of(module, positions)
    walk = _Walk(tracer, code, numbers)
    with tracing_paused():
        walk.visit(module)
        walk.visit(args)
        walk.visit(kwargs)
        walk.visit_names()
        for hooks in hooks_of_all_modules():
            walk.visit(hooks)
        walk.visit_moved()
        own = len(walk.tokens)
        for size in known_sizes(tracer):
            walk.visit(size)
    return ObservedState(
        tuple(walk.tokens),
        tuple(walk.slots),
        tuple(walk.tensors),
        tuple(walk.numbers),
        tuple(walk.memo),
        tuple(walk.kept),
        own,
        sum(map(len, walk.moved)),
        numbers,
        tuple(walk.caches),
    )


class _Walk(TensorTokens):
    def __init__(self, tracer: Any, code: ExecutedCode, positions: tuple[int, ...]) -> None:
        super().__init__(tracer)
        self.caches: list[CachePart] = []
        self._positions = positions
        self.slots: list[tuple[nn.Module, str, Any]] = []
        self._code = code
        self._names = code.names
        self._names_apart = code.names_besides_torchs
        self._builds_names = bool(self._names & _BY_NAME)
        self._codes: set[types.CodeType] = set()
        self._pending: list[type] = []
        self.moved: list[MovedTensors] = []
        self._hooks = _HOOKS - self._names
        self._numbers_of_hooks: dict[int, int] = {}

    def visit_names(self) -> None:
        """Visit what the executed code finds by name, and the closures of its functions."""
        for names, name in self._code.globals:
            if name in names:
                self.tokens.append(("global", name))
                self.visit(names[name])
        seen: set[type] = set()
        while self._pending:
            kind = self._pending.pop()
            if kind not in seen:
                seen.add(kind)
                self._visit_class(kind)
        for code in self._code.closures:
            if code not in self._codes:
                raise NotComparable(f"the closure of {code.co_qualname}")

    def visit_moved(self) -> None:
        """Visit the copies on other devices of the tensors that were met."""
        entries = [entry for moved in self.moved for entry in moved.items()]
        while True:
            met = [entry for entry in entries if id(entry[1][0]) in self.memo]
            if not met:
                return
            entries = [entry for entry in entries if id(entry[1][0]) not in self.memo]
            for (_, version, device), (tensor, copy) in sorted(met, key=lambda e: self.memo[id(e[1][0])]):
                self.tokens.append(("moved", self.memo[id(tensor)], version, str(device)))
                self.visit(copy)

    def visit(self, value: Any) -> None:
        kind = type(value)
        if kind in VALUES:
            self.tokens.append(plain_token(value))
        elif isinstance(value, (enum.Enum, logging.Logger)) and not vars(value).keys() <= _USUAL:
            raise NotComparable(f"attributes of a {kind.__qualname__}")
        elif isinstance(value, CONSTANTS):
            self.tokens.append(value if isinstance(value, enum.Enum) else (kind, str(value)))
        elif isinstance(value, SymbolicNumber):
            self.visit_number(value)
        elif not self._is_known(value):
            self._visit_new(value, kind)

    def _is_known(self, value: Any) -> bool:
        """Note an object that was met before; else give it a number."""
        at = self.memo.get(id(value))
        if at is not None:
            if any(value is cache.held for cache in self.caches):
                raise NotComparable("a cache that is reachable in two ways")
            self.tokens.append(("again", at))
            return True
        if len(self.memo) > _MOST_OBJECTS:
            raise NotComparable(f"more than {_MOST_OBJECTS:,} objects")
        self.memo[id(value)] = len(self.memo)
        self.kept.append(value)
        return False

    def _visit_new(self, value: Any, kind: type) -> None:
        if isinstance(value, torch.Tensor):
            self.visit_tensor(value)
        elif isinstance(value, nn.Module):
            self._visit_module(value)
        elif kind in (tuple, list, torch.Size, deque):
            self.tokens.append((kind, len(value), value.maxlen if kind is deque else None))
            for item in value:
                self.visit(item)
        elif kind in (dict, OrderedDict, types.MappingProxyType):
            self._visit_mapping(kind, value)
        elif kind is defaultdict:
            self.visit(value.default_factory)
            self._visit_mapping(kind, value)
        elif kind in (set, frozenset):
            if not all(type(item) in VALUES or isinstance(item, (type, *CONSTANTS)) for item in value):
                raise NotComparable("a set of objects")
            self.tokens.append(
                (kind, tuple(map(plain_token, value)))
            )  # In the order in which code sees them.
        elif kind is MovedTensors:
            self.tokens.append(kind)
            self.moved.append(value)
        elif kind in BUILT_IN:
            self._visit_builtin(value)
        elif isinstance(value, (type, types.GenericAlias, types.UnionType)):
            self.tokens.append(value)
            if isinstance(value, type):
                self._pending.append(value)
        elif kind is types.ModuleType or isinstance(value, types.ModuleType):
            self._visit_python_module(value)
        else:
            self._visit_callable_or_object(value, kind)

    def _visit_callable_or_object(self, value: Any, kind: type) -> None:
        if kind is types.FunctionType:
            self._visit_function(value)
        elif kind is types.MethodType:
            self.tokens.append("method")
            self.visit(value.__func__)
            self.visit(value.__self__)
        elif kind is functools.partial:
            self.tokens.append("partial")
            for part in (value.func, value.args, value.keywords):
                self.visit(part)
        elif kind is types.CellType:
            self.tokens.append("cell")
            try:
                held = value.cell_contents
            except ValueError:
                self.tokens.append("empty")
            else:
                self.visit(held)
        elif kind in (staticmethod, classmethod) or hasattr(value, "cache_info"):
            self.tokens.append(kind)
            self.visit(value.__wrapped__)
            if hasattr(value, "cache_info") and not keeps_only_values(value):
                raise NotComparable(f"what the cached function {value.__wrapped__.__name__} keeps")
        elif kind is property:
            self.tokens.append(kind)
            for part in (value.fget, value.fset, value.fdel):
                self.visit(part)
        elif kind is weakref.ref:
            self.tokens.append("weakref")
            self.visit(value())
        else:
            self._visit_object(value, kind)

    def _visit_object(self, value: Any, kind: type) -> None:
        """Visit an object of a Python class, which keeps all it has in `__dict__`, slots and a container."""
        base = next(b for b in kind.__mro__ if not b.__flags__ & 0x200)  # Py_TPFLAGS_HEAPTYPE
        if base not in (object, dict, OrderedDict, list, tuple, int, float, str):
            raise NotComparable(f"a {kind.__module__}.{kind.__qualname__}")
        self._pending.append(kind)
        self.tokens.append((kind, "object"))
        if base in (dict, OrderedDict):
            self._visit_mapping(dict, dict(dict.items(value)))
        elif base in (list, tuple):
            items = list(list.__iter__(value) if base is list else tuple.__iter__(value))
            self.tokens.append(len(items))
            for item in items:
                self.visit(item)
        elif base in (int, float, str):
            self.tokens.append(base.__repr__(value))
        names = [name for owner in kind.__mro__ for name in _slots(owner)]
        for name in names:
            try:
                held = object.__getattribute__(value, name)
            except AttributeError:
                continue
            self.tokens.append(("slot", name))
            self.visit(held)
        try:
            own = object.__getattribute__(value, "__dict__")
        except AttributeError:
            return
        cache = cache_part(value, own, self._positions)
        if cache is None or self._is_known(cache.held):
            self._visit_mapping(dict, own)
        else:
            self.caches.append(cache)
            self.tokens.append((CachePart, cache.name, len(cache.held)))
            self._visit_mapping(dict, {**own, cache.name: cache.own})

    def _visit_mapping(self, kind: type, value: Mapping[Any, Any]) -> None:
        self.tokens.append((kind, len(value)))
        for key, item in value.items():
            if type(key) in (str, int):
                self.tokens.append(key)
            else:
                self.visit(key)
            self.visit(item)

    def _visit_module(self, module: nn.Module) -> None:
        self.tokens.append((type(module), "module"))
        self._pending.append(type(module))
        names = vars(module)
        plain = []
        for name, value in names.items():
            if type(value) in VALUES and name not in _NOT_POSITIONAL:
                plain.append(name)
                self.slots.append((module, name, value))
            elif not isinstance(value, (dict, set)) or value:
                self.tokens.append(name)
                if name in self._hooks and isinstance(value, dict):
                    self._visit_hooks(value)
                else:
                    self.visit(value)
        self.tokens.append(tuple(sorted(plain)))

    def _visit_hooks(self, value: Mapping[int, Any]) -> None:
        """Number hooks in the order in which they are met: their own numbers are those of a process."""
        self.tokens.append((type(value), len(value)))
        for key, item in value.items():
            self.tokens.append(("hook", self._numbers_of_hooks.setdefault(key, len(self._numbers_of_hooks))))
            self.visit(item)

    def _visit_function(self, function: types.FunctionType) -> None:
        code = function.__code__
        self.tokens.append(("function", code))
        if is_trusted_file(code.co_filename):
            _refuse_unknown(function.__module__, function.__name__)
            if function.__closure__:
                self.tokens.append(function)  # Of torch or of Python itself: the very same one.
            return
        self._codes.add(code)
        for part in (function.__defaults__, function.__kwdefaults__, function.__closure__):
            self.visit(part)
        if function.__dict__:
            self.visit(function.__dict__)

    def _visit_builtin(self, value: Any) -> None:
        self.tokens.append((type(value), value.__name__))
        owner = getattr(value, "__self__", None)
        _refuse_unknown(getattr(value, "__module__", None), value.__name__)
        if owner is None or isinstance(owner, (types.ModuleType, type)):
            self.tokens.append(value)
        else:
            self.visit(owner)

    def _visit_python_module(self, module: types.ModuleType) -> None:
        self.tokens.append(("python module", module.__name__))
        path = getattr(module, "__file__", None)
        if path is None or is_trusted_file(path):
            if (reason := why_module_is_unknown(module, self._names_apart)) is not None:
                raise NotComparable(reason)
            self._visit_trusted(module)
            return
        held = object.__getattribute__(module, "__dict__")
        for name in sorted(self._names & held.keys()):
            self.tokens.append(name)
            self.visit(held[name])

    def _visit_trusted(self, module: types.ModuleType) -> None:
        """Tell which object each name of torch or Python is: a model may put another one there."""
        held = object.__getattribute__(module, "__dict__")
        for name in sorted(self._names & held.keys()):
            value = held[name]
            if isinstance(value, types.ModuleType):
                self.visit(value)
            else:
                self.kept.append(value)
                self.tokens.append((name, id(value)))

    def _visit_class(self, kind: type) -> None:
        """Visit what the classes of user code hold under names that the code uses."""
        for owner in kind.__mro__:
            _refuse_unknown(owner.__module__, owner.__name__)
            if owner.__module__.partition(".")[0] in _TRUSTED or owner.__module__ == "builtins":
                continue
            for name in self._code.used_names(owner, self._uses):
                self.tokens.append(("class attribute", name))
                self.visit(vars(owner)[name])

    def _uses(self, name: str, value: Any) -> bool:
        """Return whether the code that runs may look at an attribute of a class."""
        if type(value) is types.FunctionType and value.__code__ in self._code.found:
            return True
        is_named = name in self._names or (self._builds_names and isinstance(value, _DATA))
        return is_named and not name.startswith("__")


def _refuse_unknown(module: str | None, name: str) -> None:
    if (reason := why_name_is_unknown(module, name)) is not None:
        raise NotComparable(reason)


_NOT_POSITIONAL = frozenset({"training", "_is_full_backward_hook", "call_super_init"})
# What `nn.Module` keeps hooks in, by the number of each, which none but torch's code asks for.
_HOOKS = frozenset(name for name in vars(nn.Module()) if "hooks" in name)
_TRUSTED = frozenset({"torch", "collections", "typing", "abc", "enum", "functools", "numpy", "fakexport"})


def _slots(owner: type) -> Iterator[str]:
    slots = vars(owner).get("__slots__", ())
    for name in (slots,) if isinstance(slots, str) else slots:
        if name not in ("__dict__", "__weakref__"):
            yield f"_{owner.__name__.lstrip('_')}{name}" if name.startswith("__") else name
