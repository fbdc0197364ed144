"""Functions of `functools.lru_cache`, which would keep fake tensors after a model is built or traced.

The next trace would take them for constants without a value, and eager mode would compute with them.
"""

from __future__ import annotations

import functools
import gc
import itertools
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from types import ModuleType
from typing import Any

import torch

from fakexport._torch.fake_tensors import is_fake_tensor

_OF_TORCH = frozenset({"torch", "sympy", "mpmath", "numpy", "fakexport", *sys.stdlib_module_names})
_MOST_LOOKED_AT = 8


@dataclass
class _Searched:
    """A Python module, how many names it had, and its cached functions."""

    module: ModuleType
    count: int
    functions: list[functools._lru_cache_wrapper[Any]]


# By name, those of torch apart: there are thousands, and a look at each takes as long as a small trace.
_searched: dict[str, _Searched] = {}
_apart: set[str] = set()


def forget_cached_fakes() -> None:
    """Clear each cached function of people's own code, and of libraries of models, that keeps a fake tensor.

    One that keeps none is left alone: what it returns may be known by its identity.
    """
    for function in _cached_functions():
        if function.cache_info().currsize and any(map(_holds_fakes, _kept_by(function))):
            function.cache_clear()


def _kept_by(cached: Any) -> Iterator[Any]:
    """Yield the arguments and results that a cached function keeps, which only the collector can reach."""
    for held in gc.get_referents(cached):
        if type(held) is dict and held is not vars(cached):
            yield from held.values()
        elif type(held) is not dict and held is not cached.__wrapped__:
            yield held


def _holds_fakes(value: Any, depth: int = 1) -> bool:
    """Return whether a result is a fake tensor, or one of the first items of a container is."""
    if isinstance(value, torch.Tensor):
        return is_fake_tensor(value)
    if depth and isinstance(value, (tuple, list, dict)):
        items = value.values() if isinstance(value, dict) else value
        return any(_holds_fakes(item, depth - 1) for item in itertools.islice(items, _MOST_LOOKED_AT))
    return False


def _cached_functions() -> Iterator[functools._lru_cache_wrapper[Any]]:
    """Yield the cached functions of the modules that are loaded, and of their classes.

    A module is searched again where another one has its name, or where it has got more names.
    """
    if len(sys.modules) != len(_searched) + len(_apart):
        for name in sys.modules.keys() - _searched.keys() - _apart:
            module = sys.modules.get(name)
            if not isinstance(module, ModuleType) or name.partition(".")[0] in _OF_TORCH:
                _apart.add(name)
            else:
                _searched[name] = _Searched(module, -1, [])
    for name, known in list(_searched.items()):
        module = sys.modules.get(name)
        if not isinstance(module, ModuleType):
            continue
        if module is not known.module or len(vars(module)) != known.count:
            known.module, known.count, known.functions = module, len(vars(module)), list(_found(module))
        yield from known.functions


def _found(module: ModuleType) -> Iterator[functools._lru_cache_wrapper[Any]]:
    for value in list(vars(module).values()):
        is_own = getattr(value, "__module__", None) == module.__name__
        if is_own and isinstance(value, functools._lru_cache_wrapper):
            yield value
        elif is_own and isinstance(value, type):
            members = (getattr(member, "__func__", member) for member in list(vars(value).values()))
            yield from (each for each in members if isinstance(each, functools._lru_cache_wrapper))
