"""Represent the state of all torch settings that an operator may depend on as one number. Seen on torch 2.13.

The settings are found by name in `torch._C`: all settings with a setter and a getter without arguments, and
all functions that report whether something is enabled. Therefore, settings that a new torch release adds are
included. `tests/torch_facts/test_torch_settings.py` lists the settings without a getter.

Source: the module `torch._C`.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Hashable, Iterator
from types import BuiltinFunctionType
from typing import Any

import torch

_C = torch._C
_PLAIN = (bool, int, float, str, torch.dtype, torch.device, list, tuple, type(None))
# Dispatcher state during a call, which differs even between equivalent calls.
_OF_THE_CALL = frozenset({"_meta_in_tls_dispatch_include", "_get_thread_name"})
# Deprecated getters for single device types, which warn. `_settings` uses the new getters for autocast.
_OF_AUTOCAST = re.compile(r"(is_autocast_(?!cache)\w+_enabled|get_autocast_\w+_dtype)$")


def setting_names() -> list[str]:
    """Return the names of all setters in `torch._C`."""
    return [name for name in dir(_C) if name.startswith(("_set_", "set_"))]


def getter_of(setter: str) -> str | None:
    """Return the getter without arguments for a setting, or None if there is no such getter."""
    name = setter.partition("set_")[2]
    candidates = (f"_get_{name}", f"get_{name}", f"_is_{name}", f"is_{name}", f"_{name}")
    return next((getter for getter in candidates if _is_plain_getter(getter)), None)


def _is_plain_getter(name: str) -> bool:
    getter = getattr(_C, name, None)
    if not isinstance(getter, BuiltinFunctionType) or name in _OF_THE_CALL or _OF_AUTOCAST.match(name):
        return False
    try:
        value = getter()
        return isinstance(value, _PLAIN) or hasattr(type(value), "__int__")  # A C++ enum.
    except TypeError:  # It takes an argument.
        return False
    except RuntimeError:  # The setting was set through an old and a new API. This error is a state, too.
        return True


def _getters() -> Iterator[Callable[[], Any]]:
    reported = (name for name in dir(_C) if name.startswith(("_get_", "_is_", "is_")) and "enabled" in name)
    names = {getter_of(setter) for setter in setting_names()} | {n for n in reported if _is_plain_getter(n)}
    for name in sorted(filter(None, names)):
        yield getattr(_C, name)


_GETTERS = tuple(_getters())
_AUTOCAST = tuple(
    kind for kind in ("cpu", "cuda", "xpu", "mps", "hpu", "mtia") if torch.amp.is_autocast_available(kind)
)


class TorchSettings:
    """Assigns a number to each state of all settings. Equal numbers mean that all settings are equal."""

    def __init__(self) -> None:
        self._known: dict[Any, int] = {}
        self._last: tuple[Any, ...] | None = None
        self._number = 0

    def number(self) -> int:
        """Return the number that stands for the current settings of this thread and process."""
        now = _settings()
        if now != self._last:
            self._last = now
            key = (*map(_hashable, now[:-1]), *now[-1].items())
            self._number = self._known.setdefault(key, len(self._known))
        return self._number


def _settings() -> tuple[Any, ...]:
    try:
        settings: list[Any] = [getter() for getter in _GETTERS]
    except RuntimeError:
        settings = [_answer(getter) for getter in _GETTERS]
    if _C._is_any_autocast_enabled():
        for kind in _AUTOCAST:
            settings += (torch.is_autocast_enabled(kind), torch.get_autocast_dtype(kind))
    # Operators may read environment variables. `os.environ` would decode each variable, which takes time.
    return (*settings, os.environ._data.copy())  # type: ignore[attr-defined]


def _answer(getter: Callable[[], Any]) -> Any:
    try:
        return getter()
    except RuntimeError as error:
        return str(error)


def _hashable(value: Any) -> Hashable:
    return tuple(value) if type(value) is list else value
