"""What a function of `functools.lru_cache` keeps between its calls."""

from __future__ import annotations

import gc
import inspect
import types
from collections.abc import Iterator
from typing import Any

from .observed_values import BUILT_IN, CONSTANTS, VALUES


def keeps_only_values(cached: Any) -> bool:
    """Return whether the arguments and results that a cached function keeps are all plain values."""
    return all(map(_is_unchanging, _kept_by(cached)))


def _kept_by(cached: Any) -> Iterator[Any]:
    """Yield what a function of `functools.lru_cache` keeps, which only the collector can reach."""
    for held in gc.get_referents(cached):
        if type(held) is dict and held is not vars(cached):
            yield from held.values()
        elif type(held) is not dict and held is not cached.__wrapped__:
            yield held


def _is_unchanging(value: Any) -> bool:
    if type(value) is object:  # A mark, as `functools` puts between arguments and keywords.
        return True
    if type(value) in (tuple, frozenset):
        return all(map(_is_unchanging, value))
    kinds = (type, types.FunctionType, types.ModuleType, inspect.Signature, *BUILT_IN, *CONSTANTS)
    return type(value) in VALUES or isinstance(value, kinds) or type(value).__name__ == "_lru_list_elem"
