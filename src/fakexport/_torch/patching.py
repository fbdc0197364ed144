"""Reversible replacement of attributes of torch's modules and classes, per thread or asyncio task.

Each attribute exists once per process. While any context replaces it, the attribute is a dispatcher that
looks up the replacement of the calling context, or the original if that context has none. The first context
that replaces an attribute installs the dispatcher, and the last one removes it, regardless of the order in
which they exit. Seen on torch 2.11 to 2.13.
"""

from __future__ import annotations

import builtins
import ctypes
import gc
import os
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from types import CodeType, FrameType, FunctionType, ModuleType, TracebackType
from typing import Any

import torch
from torch._dynamo import trace_rules

from .context_stack import ContextStack, Entry
from .forwarding import ForwardingClass, ForwardingDict

_ABSENT: Any = object()
_lock = threading.RLock()
if hasattr(os, "register_at_fork"):  # A child forked while another thread holds the lock would deadlock.
    os.register_at_fork(before=_lock.acquire, after_in_parent=_lock.release, after_in_child=_lock.release)


class Patches:
    """Context manager that replaces attributes in the current thread or task.

    When the last context that replaces an attribute exits, the original object is restored; an attribute that
    did not exist before is deleted. Contexts may be nested, may overlap across threads, and may exit in any
    order. A thread started inside the block sees the originals, unless it runs in a copy of the context
    (`contextvars.copy_context().run`), which asyncio tasks do.

    Args:
        replacements: `(owner, attribute name) -> replacement`. A replacement is a function, class, property,
            static method or dict; for a module, it can be any value. `(function, "__code__") -> replacement`
            replaces the body of a Python function, also in modules that have imported the function.
    """

    def __init__(self, replacements: Mapping[tuple[Any, str], Any]) -> None:
        self._replacements = dict(replacements)
        self._entered: list[list[tuple[_Switch, Entry[Any]]]] = []

    def __enter__(self) -> None:
        with _lock:
            if not _is_any_in_place():
                _fill_tables_of_dynamo()
                trace_rules.clear_lru_cache = _clear_tables_later
            self._entered.append([])
            try:
                for key, replacement in self._replacements.items():
                    switch = _switches[key] = _switches.get(key) or _Switch(*key)
                    self._entered[-1].append((switch, switch.turn(replacement)))
            except BaseException:
                self.__exit__(None, None, None)
                raise

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        with _lock:
            for switch, entry in reversed(self._entered.pop()):
                switch.turn_back(entry)
            if not _is_any_in_place():
                _let_tables_be_cleared()


def _is_any_in_place() -> bool:
    return any(switch.is_in_place for switch in _switches.values())


def _fill_tables_of_dynamo() -> None:
    """Build TorchDynamo's tables of known functions while the attributes are still the originals.

    TorchDynamo builds the tables on first use, and builds some again for the first process group. The tables
    store the `id` of each function. They must not contain the `id` of a replacement: Python may reuse it.
    """
    trace_rules.get_torch_obj_rule_map()
    for table in vars(trace_rules).values():
        if isinstance(table, trace_rules.FunctionIdSet):
            table()


_stock_clear = trace_rules.clear_lru_cache
_is_clearing_due = False


def _clear_tables_later() -> None:
    """Postpone `trace_rules.clear_lru_cache` while any attribute is replaced.

    When the first process group is created, torch clears the tables, because they may lack rules for
    torch.distributed. The tables built here already contain these rules, and tables that are built again
    while attributes are replaced would contain replacements.
    """
    global _is_clearing_due
    _is_clearing_due = True


def _let_tables_be_cleared() -> None:
    global _is_clearing_due
    trace_rules.clear_lru_cache = _stock_clear
    if _is_clearing_due:
        _is_clearing_due = False
        _stock_clear()


def original_of(owner: Any, name: str) -> Any:
    """Return an owner's own attribute, ignoring replacements. Return None if it has no such attribute."""
    switch = _switches.get((owner, name))
    found = vars(owner).get(name) if switch is None or not switch.is_in_place else switch.original
    return None if found is _ABSENT else found


def stock_function(function: Any) -> Callable[..., Any]:
    """Return a copy of a function with its original code, even while the code is replaced."""
    switch = _switches.get((function, "__code__"))
    if switch is None or not switch.is_in_place:
        return _copied(function, function.__code__)
    return switch.original  # type: ignore[no-any-return]


def in_force(owner: Any, name: str) -> Any:
    """Return the value of `owner.name` in this context: the replacement or the original, not the dispatcher.

    A new replacement uses this function to call the previous one. Through the dispatcher, it would call
    itself.
    """
    switch = _switches.get((owner, name))
    if switch is None or not switch.is_in_place:
        return getattr(owner, name)
    return switch.bound()


def outside_of_patches(frame: FrameType | None) -> FrameType | None:
    """Return the frame that called a patched attribute. `frame` is the frame that called the replacement."""
    while frame is not None and frame.f_code.co_filename == __file__:
        frame = frame.f_back
    return frame


@contextmanager
def traced_here() -> Iterator[None]:
    """Make TorchDynamo use the replacements of this thread, even if other threads enter contexts."""
    global _tracing_thread
    try:
        with _lock:
            _tracing_thread = threading.get_ident()
            for switch in _switches.values():
                switch.traced = switch.bound() if switch.is_in_place else None
        yield
    finally:
        with _lock:
            _tracing_thread = None
            for switch in _switches.values():
                switch.show_last()


_tracing_thread: int | None = None


class _Switch:
    """One patched attribute, with its original value and the replacement of each context."""

    def __init__(self, owner: Any, name: str) -> None:
        self.owner, self.name = owner, name
        self.original: Any = _ABSENT
        self.is_in_place = False
        self._stack: ContextStack[Any] = ContextStack(f"fakexport {name}")
        self._open: list[Entry[Any]] = []
        self.traced: Any = None

    def turn(self, replacement: Any) -> Entry[Any]:
        if not self._open:
            is_needed = self.name[0] == "_" != self.name[1] and self.owner is not torch._C
            if is_needed and not hasattr(self.owner, self.name):  # C++ functions are missing in some builds.
                raise AttributeError(f"{self.owner!r} has no attribute {self.name!r}")
            # Use `vars`, not `getattr`, so that properties and inherited attributes are restored exactly.
            self.original = (
                _copied(self.owner, self.owner.__code__)
                if isinstance(self.owner, FunctionType)
                else vars(self.owner).get(self.name, _ABSENT)
            )
            self._put(replacement)
            self.is_in_place = True
        entry = self._stack.push(replacement)
        self._open.append(entry)
        self.show_last()
        return entry

    def turn_back(self, entry: Entry[Any]) -> None:
        self._stack.close(entry)
        self._open.remove(entry)
        self.show_last()
        if not self._open:
            self.is_in_place = False
            self._remove()

    def show_last(self) -> None:
        """Make the last replacement visible to TorchDynamo, unless another thread is tracing."""
        if _tracing_thread in (None, threading.get_ident()):
            value: Any = self._open[-1].value if self._open else None
            is_plain = isinstance(self.owner, _HOLDERS) or not hasattr(value, "__get__")
            self.traced = value if is_plain else value.__get__(None, self.owner)

    def value(self) -> Any:
        """Return this context's value, as stored in the owner's `__dict__`."""
        return self._stack.top(self.original)

    def bound(self) -> Any:
        """Return the value for this context, bound as attribute access on the owner binds it."""
        value = self.value()
        if value is _ABSENT and isinstance(self.owner, ModuleType):
            return getattr(builtins, self.name)  # Modules fall back to builtins, such as `print`.
        if value is _ABSENT:
            return next(
                getattr(base, self.name) for base in self.owner.__mro__[1:] if hasattr(base, self.name)
            )
        is_bound = isinstance(self.owner, _HOLDERS) or not hasattr(value, "__get__")
        return value if is_bound else value.__get__(None, self.owner)

    def call(self, *args: Any, **kwargs: Any) -> Any:
        if torch.compiler.is_dynamo_compiling():  # TorchDynamo cannot trace the lookup.
            return self.traced(*args, **kwargs)
        value = self._stack.top(_ABSENT)
        return (value if type(value) is FunctionType else self.bound())(*args, **kwargs)

    def _put(self, replacement: Any) -> None:
        if isinstance(self.owner, FunctionType):
            self.owner.__code__ = _code_that_calls(self.call, self.owner.__code__)
        elif isinstance(self.owner, ModuleType) and not callable(replacement):
            _choose_by_property(self)
        else:
            _set(self.owner, self.name, _chooser(self, replacement))

    def _remove(self) -> None:
        if isinstance(self.owner, _Chosen) and _forget_property(self):
            return
        if isinstance(self.owner, FunctionType):
            self.owner.__code__ = self.original.__code__
        elif self.original is _ABSENT:
            delattr(self.owner, self.name)
        else:
            _set(self.owner, self.name, self.original)


# Owners that do not bind functions as methods.
_HOLDERS = (ModuleType, FunctionType)
_switches: dict[tuple[Any, str], _Switch] = {}


def _copied(function: FunctionType, code: CodeType) -> FunctionType:
    copied = FunctionType(
        code, function.__globals__, function.__name__, function.__defaults__, function.__closure__
    )
    copied.__kwdefaults__ = function.__kwdefaults__
    return copied


def _calling(*args: Any, **kwargs: Any) -> Any:
    function: Any = "what is called"
    return function(*args, **kwargs)


def _code_that_calls(function: Callable[..., Any], replaced: CodeType) -> CodeType:
    """Return a code object that calls `function` and has the name and free variables of `replaced`."""
    code = _calling.__code__
    constants = tuple(function if value == "what is called" else value for value in code.co_consts)
    return code.replace(co_consts=constants, co_freevars=replaced.co_freevars, co_name=replaced.co_name)


def set_in_class(kind: type, name: str, value: Any) -> None:
    """Set a class attribute (None: remove it), even on C++ classes that reject assignment."""
    own = next(each for each in gc.get_referents(vars(kind)) if type(each) is dict)
    if value is None:
        own.pop(name, None)
    else:
        own[name] = value
    ctypes.pythonapi.PyType_Modified(ctypes.py_object(kind))  # Invalidate Python's attribute cache.


def _set(owner: Any, name: str, value: Any) -> None:
    try:
        setattr(owner, name, value)
    except TypeError:  # A class of C++, such as `torch.Generator`.
        set_in_class(owner, name, value)


def _chooser(switch: _Switch, replacement: Any) -> Any:
    """Return the dispatcher to install in the owner for this kind of replacement."""
    if isinstance(replacement, property):
        return property(
            lambda self: switch.bound().__get__(self), lambda self, value: switch.bound().__set__(self, value)
        )
    if isinstance(replacement, dict):
        return ForwardingDict(switch.value)
    if isinstance(replacement, type):
        return ForwardingClass(
            replacement.__name__, (), {"_value": switch.value, "_original": switch.original}
        )
    inner = getattr(switch.original, "__wrapped__", None)
    if isinstance(switch.owner, ModuleType) and inner is None:
        return switch.call  # A method: TorchDynamo would mistake a function for a torch operator.

    call, entries = switch.call, switch._stack.entries

    def choose(*args: Any, **kwargs: Any) -> Any:
        found = () if torch.compiler.is_dynamo_compiling() else entries.get()
        if found and found[-1].is_open and type(value := found[-1].value) is FunctionType:
            return value(*args, **kwargs)  # Fast path: torch calls this for every size check.
        return call(*args, **kwargs)

    if inner is not None:
        choose.__wrapped__ = inner  # type: ignore[attr-defined] # TorchDynamo registers the wrapped function.

    return staticmethod(choose) if isinstance(replacement, staticmethod) else choose


class _Chosen:
    """Marker base class for modules that have context-dependent attributes."""


def _choose_by_property(switch: _Switch) -> None:
    """Replace the attribute with a property of the module's class. The module's dict is unchanged."""
    module = switch.owner
    if not isinstance(module, _Chosen):
        kind = type(module)
        # Python 3.14 caches where a module's attribute is, and then skips properties without a `__getattr__`.
        is_skipped = sys.version_info >= (3, 14) and not hasattr(kind, "__getattr__")
        own = {"__getattr__": ModuleType.__getattribute__} if is_skipped else {}
        module.__class__ = type(kind.__name__, (_Chosen, kind), own)

    def read(module: Any) -> Any:
        return switch.value()

    def write(module: Any, value: Any) -> None:
        vars(module)[switch.name] = switch.original = value

    setattr(type(module), switch.name, property(read, write))


def _forget_property(switch: _Switch) -> bool:
    """Remove the property and, if it was the last one, the marker class. Return whether it existed."""
    kind = type(switch.owner)
    if switch.name not in vars(kind):
        return False
    delattr(kind, switch.name)
    if not any(isinstance(value, property) for value in vars(kind).values()):
        switch.owner.__class__ = kind.__bases__[1]
    return True
