"""Replace virtual methods of torch's C++ objects with Python functions.

The position of a method in the vtable differs between torch releases, so it is read from the headers that
each wheel ships. The rest follows the Itanium C++ ABI of Linux and macOS: an object starts with the
address of its vtable, and two entries (offset to top, type information) precede the first method. Seen on
torch 2.11 to 2.13.
"""

from __future__ import annotations

import ctypes
import functools
import re
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

import torch

T = TypeVar("T")

_POINTER_BYTES = ctypes.sizeof(ctypes.c_void_p)
_BEFORE_FIRST = 2
_DECLARATION = re.compile(r"^\s*virtual\s+(?:[^;{(]*?[\s*&])?(~?\w+)\s*\(", re.MULTILINE)


def method_positions(header: str, base_header: str | None = None) -> dict[str, int]:
    """Return the vtable position of each virtual method that a header declares.

    Args:
        header: Path of a header with one class, relative to torch's `include` folder.
        base_header: Header of its base class, whose methods come first.
    Returns:
        Method name -> position. Overloads have the position of the first one. A destructor takes two
        positions.
    Raises:
        OSError: torch was installed without its headers.
    """
    positions = method_positions(base_header) if base_header else {}
    next_free = max(positions.values(), default=-1) + 1
    text = (Path(torch.__file__).parent / "include" / header).read_text(encoding="utf-8")
    for name in _DECLARATION.findall(text):
        key = "~" if name.startswith("~") else name
        if key in positions and base_header:
            continue  # Overrides a method of the base class.
        positions.setdefault(key, next_free)
        next_free += 2 if key == "~" else 1
    return positions


def made_once(make: Callable[[str], T]) -> Callable[[str], T]:
    """Return a function that creates one object per argument and keeps it until the process ends.

    C++ stores the address of such an object. `functools.cache` is not safe here: if two threads call it at
    the same time, it creates two objects and frees one of them, which may be the one that C++ uses.
    """
    made: dict[str, T] = {}
    lock = threading.RLock()

    @functools.wraps(make)
    def the_one(name: str) -> T:
        with lock:
            if name not in made:
                made[name] = make(name)
            return made[name]

    return the_one


def table_of(address: int) -> int:
    """Return the address of the first method in the vtable of the object at `address`."""
    table = ctypes.c_void_p.from_address(address).value
    assert table is not None
    return table


def method_of(address: int, position: int, prototype: Any) -> Any:
    """Return the method at a vtable position as a `ctypes` function with the given prototype."""
    entry = ctypes.c_void_p.from_address(table_of(address) + position * _POINTER_BYTES)
    return prototype(entry.value)


class MethodTable:
    """A copy of an object's vtable with some methods replaced by Python functions.

    Args:
        replaced: Position -> `ctypes` function. It must not raise, because C++ calls it.
    """

    def __init__(self, address: int, length: int, replaced: Mapping[int, Any]) -> None:
        array = ctypes.c_void_p * (_BEFORE_FIRST + length)
        start = table_of(address) - _BEFORE_FIRST * _POINTER_BYTES
        self._entries = array.from_buffer_copy(array.from_address(start))
        self._functions = dict(replaced)
        for position, function in replaced.items():
            self._entries[_BEFORE_FIRST + position] = ctypes.cast(function, ctypes.c_void_p)

    @property
    def address(self) -> int:
        """Address to store at the start of an object that uses this vtable. Valid while `self` is alive."""
        return ctypes.addressof(self._entries) + _BEFORE_FIRST * _POINTER_BYTES
