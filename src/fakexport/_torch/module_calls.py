"""A hand on every module call of a non-strict export. Seen on torch 2.13.

The tracer looks up the path of a module, opens its scope, and calls what it was given as `forward`, hooks of
the module included. Putting another `forward` there leaves the scope to torch, and all who watch
`call_module` see every call.

Source: `torch/fx/experimental/proxy_tensor.py:_ModuleStackTracer.call_module`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from threading import get_ident
from typing import Any, TypeAlias

from torch import nn
from torch._dynamo import OptimizedModule
from torch.fx import GraphModule
from torch.fx.experimental.proxy_tensor import _ModuleStackTracer

from .patching import Patches, in_force

ModuleCall: TypeAlias = Callable[..., Any]
StandIn: TypeAlias = Callable[[str, int, Callable[[], None]], Any]


def around_module_calls(
    around: Callable[[Any, nn.Module, ModuleCall, tuple[Any, ...], dict[str, Any]], Any],
) -> Patches:
    """Return a context in which `around` answers the calls of modules.

    A model one of whose modules has several names is left alone: its tracer calls stand-ins.

    Args:
        around: Takes the tracer, the module, what calls it, and the inputs; returns what the call returns.
    """
    stock = in_force(_ModuleStackTracer, "call_module")

    def call_module(tracer: Any, module: Any, forward: ModuleCall, args: Any, kwargs: Any) -> Any:
        is_plain = not tracer.enable_attr_proxy and not isinstance(module, (OptimizedModule, GraphModule))
        if not is_plain or module not in tracer.submodule_paths:
            return stock(tracer, module, forward, args, kwargs)

        def answered(*args: Any, **kwargs: Any) -> Any:
            return around(tracer, module, forward, args, kwargs)

        return stock(tracer, module, answered, args, kwargs)

    return Patches({(_ModuleStackTracer, "call_module"): call_module})


@contextmanager
def noted_reads(slots: list[tuple[nn.Module, str]], stand_ins: Mapping[str, StandIn]) -> Iterator[set[str]]:
    """Enter a context in which uses of some attributes of modules are noted, reads and writes.

    A property of the module's class answers. It finds the value where it is, in `__dict__`, so that
    copies of the module have it too. Another thread, which may run modules of the same class, gets the value
    itself, and is noted only if it asks one of these modules.

    Args:
        slots: Modules and names; see `can_be_noted`.
        stand_ins: By name, what makes something that stands for an integer, from the name, the integer, and
            a function that notes the use. To read it is not a use.
    Yields:
        The names that were used so far, whatever the module.
    """
    noted = _NotedNames(frozenset(id(module) for module, _ in slots))
    places = {(type(module), name) for module, name in slots}
    for kind, name in places:
        setattr(kind, name, _property(name, noted, stand_ins.get(name)))
    try:
        yield noted.read
    finally:
        for kind, name in places:
            delattr(kind, name)


class _NotedNames:
    """Which names were used, in the thread that made this or of the modules themselves."""

    def __init__(self, modules: frozenset[int]) -> None:
        self.read: set[str] = set()
        self._modules = modules
        self._thread = get_ident()

    @property
    def is_own_thread(self) -> bool:
        return get_ident() == self._thread

    def add(self, module: nn.Module, name: str) -> None:
        if self.is_own_thread or id(module) in self._modules:
            self.read.add(name)


def _property(name: str, noted: _NotedNames, stand_in: StandIn | None) -> property:
    def get(module: nn.Module) -> Any:
        if stand_in is not None and noted.is_own_thread and type(value := vars(module).get(name)) is int:
            return stand_in(name, value, lambda: noted.read.add(name))
        noted.add(module, name)
        if name not in vars(module):
            return module.__getattr__(name)
        return vars(module)[name]

    def put(module: nn.Module, value: Any) -> None:
        noted.add(module, name)
        vars(module)[name] = value

    def remove(module: nn.Module) -> None:
        noted.add(module, name)
        if name not in vars(module):
            raise AttributeError(name)
        del vars(module)[name]

    return property(get, put, remove)


def can_be_noted(module: nn.Module, name: str) -> bool:
    """Return whether `noted_reads` would see every read of an attribute."""
    if any("__getattribute__" in vars(base) for base in type(module).__mro__[:-1]):
        return False
    return not any(name in vars(base) for base in type(module).__mro__)
