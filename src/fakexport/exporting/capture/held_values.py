"""Snapshots of variables, to detect later changes."""

from __future__ import annotations

import functools
import itertools
import operator
import sys
from collections import deque
from collections.abc import Iterable, Iterator
from enum import Enum
from types import CellType, FunctionType, GeneratorType, ModuleType
from typing import Any

import torch
from torch import nn

from fakexport.exporting.program import is_user_code

# Enough for a list in a dict in an object. Deeper items are compared by identity.
_DEPTH = 3
_PLAIN = (bool, int, float, complex, str, bytes, type(None))
_UNCHANGING = (*_PLAIN, type, torch.dtype, torch.device)
_OTHERS = (torch.Tensor, nn.Module, ModuleType, type, Enum)


class HeldValues:
    """Snapshots of variables at one point in time. An object that several variables hold is examined once."""

    def __init__(self) -> None:
        # The value itself is kept alive, so that its id is not reused.
        self._known: dict[tuple[int, int], tuple[Any, Any]] = {}

    def of(self, value: Any, depth: int = _DEPTH) -> Any:
        """Return a snapshot of a mutable value; return any other value itself.

        Mutable values are containers, objects of user-defined classes, iterators, and closures.
        """
        if depth == 0 or type(value) in _UNCHANGING or isinstance(value, _OTHERS):
            return value
        if (inner := _inner(value)) is None:
            return value
        place = id(value), depth
        if place not in self._known:
            self._known[place] = (value, value)  # For a value that contains itself.
            self._known[place] = (value, tuple(self.of(item, depth - 1) for item in inner))
        return self._known[place][1]


def _inner(value: Any) -> Iterable[Any] | None:
    """Return the contents of a value, or None if the contents cannot change."""
    kind = type(value)
    if isinstance(value, dict):
        return [part for item in value.items() for part in item]
    if isinstance(value, (list, tuple, set, deque)):
        return list(value)
    if kind is FunctionType:
        return list(map(in_cell, value.__closure__)) if value.__closure__ else None
    if kind in (itertools.count, itertools.repeat):
        return [repr(value)]
    if kind is GeneratorType:
        return [value.gi_frame and value.gi_frame.f_lasti, value.gi_frame and dict(value.gi_frame.f_locals)]
    if isinstance(value, Iterator):
        return [operator.length_hint(value, -1)]
    if (attributes := attributes_of_object(value)) is None:
        return None
    return [part for item in attributes.items() for part in item]


def attributes_of_object(value: Any) -> dict[str, Any] | None:
    """Return the attributes of an object of a user-defined class by name, or None for other objects."""
    if isinstance(value, _OTHERS) or not _is_of_people(type(value).__module__):
        return None
    try:
        found: dict[str, Any] = object.__getattribute__(value, "__dict__")
    except AttributeError:
        return None  # It only has slots.
    return found


@functools.lru_cache(maxsize=4096)
def _is_of_people(module: str) -> bool:
    """Return whether a Python module is user code or a model library, rather than part of torch."""
    path = getattr(sys.modules.get(module), "__file__", None)
    return module == "__main__" or (isinstance(path, str) and is_user_code(path))


def may_change(value: Any) -> bool:
    """Return whether comparing snapshots can detect that a variable with this value has changed."""
    return isinstance(value, (*_PLAIN, torch.Tensor)) or (
        not isinstance(value, _OTHERS) and _inner(value) is not None
    )


def in_cell(cell: CellType) -> Any:
    """Return the value of a variable in a closure, or None if it has none."""
    try:
        return cell.cell_contents
    except ValueError:
        return None


def is_same(old: Any, new: Any) -> bool:
    """Return whether two snapshots are the same object, equal plain values, or tuples of such values."""
    if old is new:
        return True
    if type(old) is not type(new):
        return False
    if isinstance(old, tuple):
        return len(old) == len(new) and all(map(is_same, old, new))
    return isinstance(old, _PLAIN) and bool(old == new)
