"""Present fake tensors and symbolic numbers to user code with their eager-mode classes.

During a trace, tensors are `FakeTensor`s, and numbers unknown to the trace are `SymInt`, `SymFloat` or
`SymBool`. User code that checks the class would take a different branch than in eager mode. torch's own code
must still see the real classes, so the result depends on the namespace (the dict of globals) of the function
that makes the check:

- `x.__class__`, `isinstance(x, int)`, `case int():`, `functools.singledispatch`: Python reads the value's
  `__class__`, so these classes get a property with that name.
- `type(x)` reads no attribute, so namespaces of user code get a global named `type`, which shadows the
  built-in.

Seen on torch 2.11 to 2.15, Python 3.11 to 3.13.
"""

from __future__ import annotations

import builtins
import functools
import importlib._bootstrap
import re
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FunctionType, ModuleType
from typing import Any

import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensor

from fakexport._torch.emulation.parameter_classes import own_class
from fakexport._torch.patching import set_in_class

_NUMBERS: dict[type, type] = {torch.SymInt: int, torch.SymFloat: float, torch.SymBool: bool}
_CLASS: Any = vars(object)["__class__"]
# torch calls these packages during a trace, with its own numbers. Shadowing `type` in them would only take
# time.
_RUN_BY_TORCH = re.compile(r"[/\\]site-packages[/\\](?:sympy|mpmath|numpy|networkx)[/\\]")


def presented_class(value: object) -> type:
    """Return the class that a value has in eager mode."""
    kind = type(value)
    if kind in _NUMBERS:
        return _NUMBERS[kind]
    if not isinstance(value, FakeTensor):
        return kind
    return next((own for held, name, own in _own_parameters if held.get(name) is value), own_class(value))


# torch traces a plain parameter instead of a parameter of a subclass. For each parameter of a subclass, this
# list contains the dict that stores it, its name, and its class.
_own_parameters: list[tuple[dict[str, Any], str, type]] = []


class _TypeOfType(type):
    """The metaclass of `_type`, which makes it behave like `type`. Subclasses of `_type` are not affected."""

    def __call__(cls, *args: Any, **kwargs: Any) -> Any:
        if cls is not _type:
            return super().__call__(*args, **kwargs)
        if len(args) == 1 and not kwargs:
            kind = presented_class(args[0])
            return _type if kind in (type, _TypeOfType) else kind
        name, bases, body = args
        return type(name, bases, {"__module__": sys._getframe(1).f_globals["__name__"], **body}, **kwargs)

    def __getitem__(cls, item: Any) -> Any:
        if cls is not _type:
            raise TypeError(f"type {cls.__name__!r} is not subscriptable")
        return type[item]

    def __instancecheck__(cls, instance: object) -> bool:
        return isinstance(instance, type) if cls is _type else super().__instancecheck__(instance)

    def __subclasscheck__(cls, subclass: type) -> bool:
        return issubclass(subclass, type) if cls is _type else super().__subclasscheck__(subclass)

    def __eq__(cls, other: object) -> bool:
        return cls is other or (cls is _type and other is type)

    def __hash__(cls) -> int:
        return hash(type) if cls is _type else super().__hash__()


_type: Any = _TypeOfType("type", (type,), {"__module__": "builtins"})


class _Builtins(ModuleType):
    """Replacement for the module `builtins`, whose `type` is `_type`."""

    type = _type

    def __getattr__(self, name: str) -> Any:
        return getattr(builtins, name)


_STAND_INS: tuple[tuple[Any, Any], ...] = ((type, _type), (builtins, _Builtins("builtins")))
_HIDDEN = {id(hidden) for hidden, _ in _STAND_INS}


class _Namespaces:
    """The namespaces whose functions see eager-mode classes, and the original values of replaced globals."""

    def __init__(self) -> None:
        self.replaced: dict[int, tuple[dict[str, Any], dict[str, Any]]] = {}

    def __contains__(self, names: dict[str, Any]) -> bool:
        return id(names) in self.replaced

    def add(self, names: dict[str, Any]) -> None:
        if names in self:
            return
        stand_ins: dict[str, Any] = {}
        if not _HIDDEN.isdisjoint(map(id, names.values())):  # Rare, and much faster to exclude.
            stand_ins = {
                name: stand_in
                for name, value in names.items()
                for hidden, stand_in in _STAND_INS
                if value is hidden and not name.startswith("__")
            }
        if "type" not in names:
            stand_ins["type"] = _type
        self.replaced[id(names)] = names, {name: names.get(name, _CLASS) for name in stand_ins}
        names.update(stand_ins)

    def add_for_attribute(self, names: dict[str, Any]) -> None:
        """Add a namespace without a global `type`, because its functions do not call `type`."""
        self.replaced.setdefault(id(names), (names, {}))

    def restore(self) -> None:
        for names, originals in self.replaced.values():
            for name, original in originals.items():
                if not any(names.get(name) is stand_in for _, stand_in in _STAND_INS):
                    continue  # The module itself has assigned this global.
                if original is _CLASS:
                    del names[name]
                else:
                    names[name] = original
        self.replaced.clear()


_asking = _Namespaces()
_is_presented = False


@contextmanager
def classes_presented(is_user_code: Callable[[str], bool], model: nn.Module | None = None) -> Iterator[None]:
    """Enter a context in which user code sees eager-mode classes.

    This applies to loaded modules, to modules that are imported inside the context, and to functions of the
    model whose namespace does not belong to a module. Only one model is built or traced at a time. A nested
    context extends the outer one, because a factory may export another model.

    Args:
        is_user_code: Returns whether a file belongs to the model's author or to a model library.
        model: The model, or None while it is being built.
    """
    global _is_presented
    if _is_presented:
        _add_model(model)
        yield
        return
    is_asking = functools.cache(lambda path: is_user_code(path) and not _RUN_BY_TORCH.search(path))
    stock = importlib._bootstrap._load_unlocked  # type: ignore[attr-defined] # Runs the code of a new module.

    def load(spec: Any) -> Any:
        module = stock(spec)
        if isinstance(spec.origin, str) and is_asking(spec.origin):
            _asking.add(vars(module))
        return module

    _is_presented = True
    try:
        for module in _user_modules(is_asking):
            _asking.add(vars(module))
        _add_model(model)
        _asking.add_for_attribute(vars(functools))
        importlib._bootstrap._load_unlocked = load  # type: ignore[attr-defined]
        _set_property(_presented)
        yield
    finally:
        _set_property(None)
        importlib._bootstrap._load_unlocked = stock  # type: ignore[attr-defined]
        _asking.restore()
        _own_parameters.clear()
        _is_presented = False


def _user_modules(is_asking: Callable[[str], bool]) -> Iterator[ModuleType]:
    for name, module in sys.modules.copy().items():
        path = getattr(module, "__file__", None)
        if name in ("__main__", "__mp_main__") or (isinstance(path, str) and is_asking(path)):
            yield module


def _add_model(model: nn.Module | None) -> None:
    if model is None:
        return
    parts = list(model.modules())
    for part in parts:
        for name, value in part._parameters.items():
            own = own_class(value) if isinstance(value, FakeTensor) else type(value)
            if own not in (nn.Parameter, torch.Tensor, type(None)):
                _own_parameters.append((part._parameters, name, own))
    owners = {owner for kind in {type(part) for part in parts} for owner in kind.__mro__}
    left = [value for owner in owners for value in vars(owner).values() if isinstance(value, FunctionType)]
    while left:
        names = left.pop().__globals__
        if names not in _asking and names.get("__name__") not in sys.modules:  # Code run with `exec`.
            _asking.add(names)
            left += [value for value in names.values() if isinstance(value, FunctionType)]


def _read(value: object) -> Any:
    frame = sys._getframe(1)
    if frame.f_code.co_name == "__instancecheck__" and frame.f_back is not None:
        frame = frame.f_back  # `isinstance(x, numbers.Number)` runs a function of `abc`.
    return presented_class(value) if id(frame.f_globals) in _asking.replaced else type(value)


_presented = property(_read, _CLASS.__set__)


def _set_property(new: property | None) -> None:
    """Set or remove a property named `__class__` on the classes.

    `FakeTensor.__class__ = ...` would change the metaclass, so the class's `__dict__` is modified directly.
    """
    for kind in (FakeTensor, *_NUMBERS):
        set_in_class(kind, "__class__", new)
