"""Reversible replacement of attributes of torch's modules and classes, for one thread or asyncio task.

An attribute is one per process, so what is put in its place asks which replacement holds in the context that
uses it: the last one entered there, or the original. It is put in place by the first context that replaces
the attribute and removed by the last, in whatever order they end. Seen on torch 2.11 to 2.13.
"""

from __future__ import annotations

import builtins
import ctypes
import gc
import os
import threading
from collections import UserDict
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from types import CodeType, FrameType, FunctionType, ModuleType, TracebackType
from typing import Any

import torch
from torch._dynamo import trace_rules

from .context_stack import ContextStack, Entry

_ABSENT: Any = object()
_lock = threading.RLock()
if hasattr(
    os, "register_at_fork"
):  # A child that is forked while another thread holds it would wait for ever.
    os.register_at_fork(before=_lock.acquire, after_in_parent=_lock.release, after_in_child=_lock.release)


class Patches:
    """Context manager: in this thread or task, attributes have other values.

    Afterwards, when no other context replaces an attribute, the very same object is there as before; one that
    did not exist is removed again. Uses may be nested, overlap in several threads, and end in any order. A
    thread that is started inside of the block sees the originals, unless it runs in a copy of the context
    (`contextvars.copy_context().run`, as `asyncio` does it).

    Args:
        replacements: `(owner, attribute name) -> replacement`: a function, class, property or static method;
            a dict; of a module, any value. `(function, "__code__") -> replacement` replaces what a function
            of Python does, under whatever name it is known.
    """

    def __init__(self, replacements: Mapping[tuple[Any, str], Any]) -> None:
        self._replacements = dict(replacements)
        self._entered: list[list[tuple[_Switch, Entry[Any]]]] = []

    def __enter__(self) -> None:
        with _lock:
            if not _is_any_in_place():
                _fill_tables_of_dynamo()
                trace_rules.clear_lru_cache = _clear_tables_later
            entered: list[tuple[_Switch, Entry[Any]]] = []
            self._entered.append(entered)
            for (owner, name), replacement in self._replacements.items():
                switch = _switches.get((owner, name)) or _Switch(owner, name)
                _switches[owner, name] = switch
                entered.append((switch, switch.turn(replacement)))

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
    """Build the tables of functions that TorchDynamo knows, from the attributes as they are now.

    It builds each on first use, and that of torch's functions again after the first process group was made;
    most hold the `id` of a function. A replacement must not get into one: it is gone afterwards, and any
    function may then get its `id`.
    """
    trace_rules.get_torch_obj_rule_map()
    for table in vars(trace_rules).values():
        if isinstance(table, trace_rules.FunctionIdSet):
            table()


_stock_clear = trace_rules.clear_lru_cache
_is_clearing_due = False


def _clear_tables_later() -> None:
    """Stands in for `trace_rules.clear_lru_cache` while anything is replaced.

    The first process group clears the tables, for rules of torch.distributed that an early import left out;
    they are complete here. Built again now, they would hold replacements.
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
    """Return what an owner itself has under a name while nothing is replaced; None if it has nothing."""
    switch = _switches.get((owner, name))
    found = vars(owner).get(name) if switch is None or not switch.is_in_place else switch.original
    return None if found is _ABSENT else found


def stock_function(function: Any) -> Callable[..., Any]:
    """Return what a function does while its code is not replaced."""
    switch = _switches.get((function, "__code__"))
    if switch is None or not switch.is_in_place:
        return _copied(function, function.__code__)
    return switch.original  # type: ignore[no-any-return]


def in_force(owner: Any, name: str) -> Any:
    """Return what `owner.name` is in this context, without what chooses it: for a replacement that calls it.

    The choice would be that replacement again.
    """
    switch = _switches.get((owner, name))
    if switch is None or not switch.is_in_place:
        return getattr(owner, name)
    return switch.bound()


def outside_of_patches(frame: FrameType | None) -> FrameType | None:
    """Return the frame that called what is replaced, given the one that called the replacement."""
    while frame is not None and frame.f_code.co_filename == __file__:
        frame = frame.f_back
    return frame


@contextmanager
def uses_noted() -> Iterator[list[str]]:
    """Enter a context that collects the names of replaced attributes that are used, in any thread.

    Uses of another thread only add to them.
    """
    global _used
    before, _used = _used, []
    try:
        yield _used
    finally:
        _used = before


_used: list[str] | None = None


@contextmanager
def traced_here() -> Iterator[None]:
    """Enter a context in which TorchDynamo sees what holds in this thread, whatever other threads enter."""
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
    """One attribute: its original, and the replacements by context."""

    def __init__(self, owner: Any, name: str) -> None:
        self.owner, self.name = owner, name
        self.original: Any = _ABSENT
        self.is_in_place = False
        self._stack: ContextStack[Any] = ContextStack(f"fakexport {name}")
        self._open: list[Entry[Any]] = []
        self.traced: Any = None

    def turn(self, replacement: Any) -> Entry[Any]:
        if not self._open:
            # `vars` and not `getattr`: a property or an inherited attribute must come back as it was.
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
        """Let TorchDynamo see the last replacement, unless another thread traces."""
        if _tracing_thread in (None, threading.get_ident()):
            value: Any = self._open[-1].value if self._open else None
            is_plain = isinstance(self.owner, _HOLDERS) or not hasattr(value, "__get__")
            self.traced = value if is_plain else value.__get__(None, self.owner)

    def value(self) -> Any:
        """Return what holds in this context, as it is in the owner."""
        return self._stack.top(self.original)

    def bound(self) -> Any:
        """Return what holds in this context, as `owner.name` returns it."""
        value = self.value()
        if value is _ABSENT and isinstance(self.owner, ModuleType):
            return getattr(builtins, self.name)  # A module finds the built-in, such as `print`.
        if value is _ABSENT:
            return next(
                getattr(base, self.name) for base in self.owner.__mro__[1:] if hasattr(base, self.name)
            )
        is_bound = isinstance(self.owner, _HOLDERS) or not hasattr(value, "__get__")
        return value if is_bound else value.__get__(None, self.owner)

    def call(self, *args: Any, **kwargs: Any) -> Any:
        if _used is not None:
            _used.append(self.name)
        # TorchDynamo cannot trace the choice.
        if torch.compiler.is_dynamo_compiling():
            return self.traced(*args, **kwargs)
        value = self._stack.top(_ABSENT)
        if type(value) is FunctionType:  # In a hurry: torch's questions about sizes come by here.
            return value(*args, **kwargs)
        return self.bound()(*args, **kwargs)

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


# Owners that do not bind what they hold.
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
    """Return code that calls a function, with the name and the closure of what it replaces."""
    code = _calling.__code__
    constants = tuple(function if value == "what is called" else value for value in code.co_consts)
    return code.replace(co_consts=constants, co_freevars=replaced.co_freevars, co_name=replaced.co_name)


def set_in_class(kind: type, name: str, value: Any) -> None:
    """Set an attribute of a class, or remove it with None, also of a class of C++ that refuses changes."""
    (own,) = (each for each in gc.get_referents(vars(kind)) if type(each) is dict)
    if value is None:
        own.pop(name, None)
    else:
        own[name] = value
    ctypes.pythonapi.PyType_Modified(ctypes.py_object(kind))  # Python forgets what it cached of the class.


def _set(owner: Any, name: str, value: Any) -> None:
    try:
        setattr(owner, name, value)
    except TypeError:  # A class of C++, such as `torch.Generator`.
        set_in_class(owner, name, value)


def _chooser(switch: _Switch, replacement: Any) -> Any:
    """Return what is in the owner and hands on to what holds in the context."""
    if isinstance(replacement, property):
        return property(
            lambda self: switch.bound().__get__(self), lambda self, value: switch.bound().__set__(self, value)
        )
    if isinstance(replacement, dict):
        return _ChosenDict(switch)
    if isinstance(replacement, type):
        return _ChosenClass(replacement.__name__, (), {"_switch": switch})
    inner = getattr(switch.original, "__wrapped__", None)
    if isinstance(switch.owner, ModuleType) and inner is None:
        return switch.call  # A method: TorchDynamo takes functions that look like torch's for operators.

    call = switch.call

    def choose(*args: Any, **kwargs: Any) -> Any:
        return call(*args, **kwargs)

    if inner is not None:
        choose.__wrapped__ = inner  # type: ignore[attr-defined] # TorchDynamo registers what is inside.

    return staticmethod(choose) if isinstance(replacement, staticmethod) else choose


class _ChosenDict(UserDict[Any, Any]):
    """The dict that holds in the context."""

    def __init__(self, switch: _Switch) -> None:
        self._switch = switch

    @property
    def data(self) -> Any:  # type: ignore[override] # Chosen at each use.
        return self._switch.value()

    def get(self, key: Any, default: Any = None) -> Any:
        return self._switch.value().get(key, default)


class _ChosenClass(type):
    """Stands for the class that holds in the context; instances of the original are instances too."""

    _switch: _Switch

    def __call__(cls, *args: Any, **kwargs: Any) -> Any:
        return cls._switch.value()(*args, **kwargs)

    def __instancecheck__(cls, instance: Any) -> bool:
        return isinstance(instance, (cls._switch.value(), cls._switch.original))

    def __subclasscheck__(cls, subclass: type) -> bool:
        return issubclass(subclass, (cls._switch.value(), cls._switch.original))

    def __getattr__(cls, name: str) -> Any:
        return getattr(cls._switch.value(), name)


class _Chosen:
    """Marks the class of a module some of whose attributes are chosen by context."""


def _choose_by_property(switch: _Switch) -> None:
    """Let a property of the module's class answer; what the module itself has stays as it is."""
    module = switch.owner
    if not isinstance(module, _Chosen):
        module.__class__ = type(type(module).__name__, (_Chosen, type(module)), {})

    def read(module: Any) -> Any:
        if _used is not None:
            _used.append(switch.name)
        return switch.value()

    def write(module: Any, value: Any) -> None:
        vars(module)[switch.name] = switch.original = value

    setattr(type(module), switch.name, property(read, write))


def _forget_property(switch: _Switch) -> bool:
    """Take the property away, and the class with the last one; says whether there was one."""
    kind = type(switch.owner)
    if switch.name not in vars(kind):
        return False
    delattr(kind, switch.name)
    if not any(isinstance(value, property) for value in vars(kind).values()):
        switch.owner.__class__ = kind.__bases__[1]
    return True
