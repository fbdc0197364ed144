"""Remove fake tensors that `forward` stored on the model during tracing, in an attribute, a dict or a list.

Otherwise, the next trace would treat them as constants without a value, and the user's model would compute
with them.
"""

from __future__ import annotations

import functools
from collections import OrderedDict, defaultdict, deque
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from operator import is_
from types import FunctionType
from typing import Any

import torch
from torch import nn

from fakexport.emulation.fake import forget_cached_fakes, is_fake
from fakexport.exporting.program import is_user_code

from .held_values import attributes_of_object, in_cell
from .python_state import files_of_owners

_CONTAINERS = (dict, list, tuple, set, deque)
_PLAIN_CONTAINERS = frozenset({dict, list, tuple, set, OrderedDict, defaultdict, deque})
"""Containers without attributes. A model has many, most of them empty, so the checks for these are short."""
_CONSTANTS = frozenset({bool, int, float, complex, str, bytes, type(None), torch.Tensor, nn.Parameter})
_DEPTH = 3
_ABSENT = object()


@contextmanager
def fakes_taken_back(root: nn.Module) -> Iterator[None]:
    """Enter a context that, on exit, removes new fake tensors from the model's state and cached functions.

    Attributes with new fake tensors are reset to their old values, and containers to their old items. Other
    changes are kept.
    """
    state = ModelState(root)
    try:
        yield
    finally:
        state.put_back(fakes_alone=True)
        forget_cached_fakes(state.cached_functions)


class ModelState:
    """A snapshot of a model's state.

    It contains the attributes, parameters, buffers, submodules and hooks of the modules, the variables of
    their classes and files, and the objects of user-defined classes and the closures that these refer to. The
    root's own `forward` is not included, because each trace replaces it.

    Attributes:
        cached_functions: Functions in variables, attributes and closures that `functools.lru_cache` caches.
    """

    def __init__(self, root: nn.Module) -> None:
        owners: dict[int, Any] = {id(owner): owner for owner in (*root.modules(), *files_of_owners(root))}
        self._root = root
        self._variables = [(owner, dict(_variables(owner))) for owner in owners.values()]
        for _, variables in list(self._variables):
            for value in variables.values():
                self._add_objects(owners, value)
        self.cached_functions = [
            value
            for _, variables in self._variables
            for value in variables.values()
            if isinstance(value, functools._lru_cache_wrapper)
        ]
        self._items = {
            id(held): (held, _items_of(held))
            for _, variables in self._variables
            for value in variables.values()
            if isinstance(value, _CONTAINERS)
            for held in containers_in(value)
        }

    def _add_objects(self, owners: dict[int, Any], value: Any, depth: int = _DEPTH) -> None:
        """Add the objects in a value whose attributes `put_back` restores, except the known `owners`."""
        kind = type(value)
        if depth == 0 or kind in _CONSTANTS or id(value) in owners:
            return
        # A closure may refer to objects that do not belong to the model.
        inner = () if kind is FunctionType else _inner_values(value)
        if kind not in _PLAIN_CONTAINERS and (attributes := _variables_of_object(value)) is not None:
            owners[id(value)] = value
            self._variables.append((value, dict(attributes)))
            inner = () if kind is FunctionType else (*inner, *attributes.values())
        for each in inner:
            self._add_objects(owners, each, depth - 1)

    def put_back(self, *, fakes_alone: bool = False) -> None:
        """Restore everything that changed. With `fakes_alone`, restore only what now contains fakes."""
        for held, old in self._items.values():
            if not _has_items(held, old) and (not fakes_alone or _holds_fakes(held)):
                held.clear()
                held.update(old) if isinstance(held, (dict, set)) else held.extend(old)
        for owner, variables in self._variables:
            now = dict(_variables(owner))
            for name in dict.fromkeys((*now, *variables)):
                value, old = now.get(name, _ABSENT), variables.get(name, _ABSENT)
                if owner is self._root and name == "forward":
                    continue
                if value is not old and (not fakes_alone or _holds_fakes(value)):
                    _put_back(owner, name, old)


def _variables(owner: Any) -> Iterator[tuple[str, Any]]:
    if (attributes := _variables_of_object(owner)) is not None:
        yield from attributes.items()
        return
    # `nn.LSTM` and similar layers have a second list of their parameters, which torch.export replaces.
    ignored = "_flat_weight" if isinstance(owner, nn.Module) else "__"
    for name, value in vars(owner).items():
        if not name.startswith(ignored):
            yield name, value


def _variables_of_object(value: Any) -> dict[str, Any] | None:
    """Return the attributes of a user-defined object, or the variables in a closure of user code."""
    if type(value) is not FunctionType:
        return attributes_of_object(value)
    if not value.__closure__ or not is_user_code(value.__code__.co_filename):
        return None
    cells = zip(value.__code__.co_freevars, value.__closure__, strict=True)
    return {name: in_cell(cell) for name, cell in cells if name != "__class__"}


def _put_back(owner: Any, name: str, value: Any) -> None:
    if isinstance(owner, FunctionType):
        assert owner.__closure__ is not None
        owner.__closure__[owner.__code__.co_freevars.index(name)].cell_contents = value
    elif isinstance(owner, type):  # The `__dict__` of a class is read-only.
        delattr(owner, name) if value is _ABSENT else setattr(owner, name, value)
    elif value is _ABSENT:
        del vars(owner)[name]
    else:
        vars(owner)[name] = value


def _holds_fakes(value: Any, depth: int = _DEPTH) -> bool:
    if isinstance(value, torch.Tensor):
        return is_fake(value)
    return depth > 0 and any(_holds_fakes(inner, depth - 1) for inner in _inner(value))


def _inner(value: Any) -> Iterable[Any]:
    return [*_inner_values(value), *(_variables_of_object(value) or {}).values()]


def containers_in(value: Any, depth: int = _DEPTH) -> Iterator[Any]:
    """Yield the lists, dicts and sets in a value, recursively."""
    if type(value) in _PLAIN_CONTAINERS and type(value) is not tuple:
        yield value
    if depth and type(value) is not set:
        for inner in _inner_values(value):
            if isinstance(inner, _CONTAINERS):
                yield from containers_in(inner, depth - 1)


def _inner_values(value: Any) -> Iterable[Any]:
    """Return the values of a dict or the items of another container. Empty for other objects."""
    if isinstance(value, dict):
        return list(value.values())
    return value if isinstance(value, _CONTAINERS) else ()


def _items_of(container: Any) -> list[Any]:
    return list(container.items()) if isinstance(container, dict) else list(container)


def _has_items(container: Any, items: list[Any]) -> bool:
    """Return whether a container still holds exactly the objects that `_items_of` returned."""
    new = _items_of(container)
    return len(new) == len(items) and all(
        all(map(is_, a, b)) if isinstance(container, dict) else a is b
        for a, b in zip(new, items, strict=True)
    )
