"""What a variable holds, as something that shows later whether it was changed."""

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

from fakexport.program import is_user_code

# A list in a dict in an object; what is deeper is compared by identity.
_DEPTH = 3
_PLAIN = (bool, int, float, complex, str, bytes, type(None))
_UNCHANGING = (*_PLAIN, type, torch.dtype, torch.device)
_OTHERS = (torch.Tensor, nn.Module, ModuleType, type, Enum)


class HeldValues:
    """What variables hold at one time. An object that several of them hold is looked at once."""

    def __init__(self) -> None:
        # With the value itself: its number may be that of another one when it is gone.
        self._known: dict[tuple[int, int], tuple[Any, Any]] = {}

    def of(self, value: Any, depth: int = _DEPTH) -> Any:
        """Return the value itself; of what can be changed, what is in it now.

        Containers, objects of people's classes, iterators, and functions with variables of another one.
        """
        if depth == 0 or type(value) in _UNCHANGING or isinstance(value, _OTHERS):
            return value
        if (inner := _inner(value)) is None:
            return value
        place = id(value), depth
        if place not in self._known:
            self._known[place] = (value, value)  # Where it holds itself.
            self._known[place] = (value, tuple(self.of(item, depth - 1) for item in inner))
        return self._known[place][1]


def _inner(value: Any) -> Iterable[Any] | None:
    """Return what is in a value; None if nothing that could change."""
    kind = type(value)
    if isinstance(value, dict):
        return [part for item in value.items() for part in item]
    if isinstance(value, (list, tuple, set, deque)):
        return list(value)
    if kind is FunctionType:
        return list(map(_in_cell, value.__closure__)) if value.__closure__ else None
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
    """Return the attributes of an object of people's classes, by name; None of anything else."""
    if isinstance(value, _OTHERS) or not _is_of_people(type(value).__module__):
        return None
    try:
        found: dict[str, Any] = object.__getattribute__(value, "__dict__")
    except AttributeError:
        return None  # It has slots alone.
    return found


@functools.lru_cache(maxsize=4096)
def _is_of_people(module: str) -> bool:
    """Return whether a Python module is people's own, or of a library of models: others keep caches."""
    path = getattr(sys.modules.get(module), "__file__", None)
    return module == "__main__" or (isinstance(path, str) and is_user_code(path))


def may_change(value: Any) -> bool:
    """Return whether `HeldValues` could tell that what a variable holds was changed, or exchanged."""
    return isinstance(value, (*_PLAIN, torch.Tensor)) or (
        not isinstance(value, _OTHERS) and _inner(value) is not None
    )


def _in_cell(cell: CellType) -> Any:
    try:
        return cell.cell_contents
    except ValueError:
        return None  # It is empty.


def is_same(old: Any, new: Any) -> bool:
    """Return whether nothing was assigned: the same object, an equal number or text, a container of such."""
    if old is new:
        return True
    if type(old) is not type(new):
        return False
    if isinstance(old, tuple):
        return len(old) == len(new) and all(map(is_same, old, new))
    return isinstance(old, _PLAIN) and bool(old == new)
