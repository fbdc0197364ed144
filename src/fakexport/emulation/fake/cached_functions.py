"""Clear the caches of `functools.lru_cache` functions that contain fake tensors after a build or a trace.

Otherwise, the next trace would treat these tensors as constants without a value, and eager mode would compute
with them.
"""

from __future__ import annotations

import functools
import gc
import itertools
import sys
from collections.abc import Iterable, Iterator
from types import MethodType, ModuleType
from typing import Any

import torch

from fakexport._torch.emulation.fake_tensors import is_fake_tensor

_OF_TORCH = frozenset({"torch", "sympy", "mpmath", "numpy", "fakexport", *sys.stdlib_module_names})
_MOST_LOOKED_AT = 8


def _may_have_cached(name: str, module: Any) -> bool:
    """Return whether to search a module for cached functions.

    Modules of torch are skipped: there are thousands, and searching them takes as long as a small trace.
    """
    return isinstance(module, ModuleType) and name.partition(".")[0] not in _OF_TORCH


# By module name: the module, the number of its attributes when it was searched, and its cached functions.
_searched: dict[str, tuple[ModuleType, int, list[functools._lru_cache_wrapper[Any]]]] = {}


def forget_cached_fakes(more: Iterable[functools._lru_cache_wrapper[Any]] = ()) -> None:
    """Clear each cached function of user code and model libraries whose cache contains a fake tensor.

    Other caches are not cleared, because callers may rely on getting the identical object again.

    Args:
        more: Further cached functions, which no module or class contains.
    """
    for function in itertools.chain(_cached_functions(), more):
        if function.cache_info().currsize and any(map(_holds_fakes, _kept_by(function))):
            function.cache_clear()


def _kept_by(cached: Any) -> Iterator[Any]:
    """Yield the cached arguments and results of a function. Only the garbage collector exposes them."""
    for held in gc.get_referents(cached):
        if type(held) is dict and held is not vars(cached):
            yield from held.values()
        elif type(held) is not dict and held is not cached.__wrapped__:
            yield held


def _holds_fakes(value: Any, depth: int = 1) -> bool:
    """Return whether a value is a fake tensor, or a container with a fake tensor among its first items."""
    if isinstance(value, torch.Tensor):
        return is_fake_tensor(value)
    if depth and isinstance(value, (tuple, list, dict)):
        items = value.values() if isinstance(value, dict) else value
        return any(_holds_fakes(item, depth - 1) for item in itertools.islice(items, _MOST_LOOKED_AT))
    return False


def _cached_functions() -> Iterator[functools._lru_cache_wrapper[Any]]:
    """Yield the cached functions of loaded modules and their classes.

    A module is searched again if it was replaced or if its number of attributes changed.
    """
    for name, module in sys.modules.copy().items():
        if not _may_have_cached(name, module):
            continue
        known = _searched.get(name)
        if known is None or known[0] is not module or known[1] != len(vars(module)):
            known = _searched[name] = module, len(vars(module)), list(_found(module))
        yield from known[2]


def _found(module: ModuleType) -> Iterator[functools._lru_cache_wrapper[Any]]:
    # A lazy object, such as those of six or a module of transformers, may import a module when it is asked
    # for `__class__`, `__module__` or `__func__`, and fail. So only types are asked.
    for value in list(vars(module).values()):
        is_class = issubclass(type(value), type)
        if not is_class and not issubclass(type(value), functools._lru_cache_wrapper):
            continue
        if getattr(value, "__module__", None) != module.__name__:
            continue
        for member in list(vars(value).values()) if is_class else [value]:
            function = member.__func__ if issubclass(type(member), _BOUND) else member
            if issubclass(type(function), functools._lru_cache_wrapper):
                yield function


_BOUND = (staticmethod, classmethod, MethodType)
