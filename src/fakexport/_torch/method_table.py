"""C++ objects of torch with some of their virtual methods answered by Python.

Which position a method has in the table differs between releases of torch, so it is read from the headers
that each wheel ships. The rest is the Itanium C++ ABI of Linux and macOS: an object begins with the address
of its table, and two entries (offset to the top, type information) are before the first method.
Seen on torch 2.11 to 2.13.
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
    """Return the position of each virtual method that a header declares, in the table of its class.

    Args:
        header: Path below torch's `include` folder, of a header with one class in it.
        base_header: The header of its base class, whose methods come first.
    Returns:
        Method name -> position. Of overloads, the first. A destructor takes two positions.
    Raises:
        OSError: torch was installed without its headers.
    """
    positions = method_positions(base_header) if base_header else {}
    next_free = max(positions.values(), default=-1) + 1
    text = (Path(torch.__file__).parent / "include" / header).read_text(encoding="utf-8")
    for name in _DECLARATION.findall(text):
        key = "~" if name.startswith("~") else name
        if key in positions and base_header:
            continue  # It overrides a method of the base class.
        positions.setdefault(key, next_free)
        next_free += 2 if key == "~" else 1
    return positions


def made_once(make: Callable[[str], T]) -> Callable[[str], T]:
    """Return a function that makes one object for each argument, for the life of the process.

    C++ keeps the address of such an object. `functools.cache` calls the function twice if two threads ask at
    the same time, and frees one of the two objects, whichever of them C++ has.
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
    """Return the address of the first method in the table of the object at `address`."""
    table = ctypes.c_void_p.from_address(address).value
    assert table is not None
    return table


def method_of(address: int, position: int, prototype: Any) -> Any:
    """Return the method at this position, as a `ctypes` function of this prototype."""
    entry = ctypes.c_void_p.from_address(table_of(address) + position * _POINTER_BYTES)
    return prototype(entry.value)


class MethodTable:
    """A copy of an object's table in which some methods are Python functions.

    Args:
        address: Address of the object; it is not changed.
        length: How many methods to copy.
        replaced: Position -> a `ctypes` function. It must raise nothing: C++ calls it.
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
        """What an object with this table begins with. Valid as long as this object lives."""
        return ctypes.addressof(self._entries) + _BEFORE_FIRST * _POINTER_BYTES
