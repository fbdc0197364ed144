"""Fake tensors that a trace leaves in a model: `forward` keeps them in an attribute, a dict or a list.

The next trace would take them for constants without a value, and the user's own model would compute with
them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

from fakexport.fake import forget_cached_fakes, is_fake

from .containers import CONTAINERS, DEPTH, containers_in, has_items, inner_values, items_of
from .held_values import attributes_of_object
from .module_attributes import is_plain_attribute
from .shared_variables import files_of_owners

_ABSENT = object()


@contextmanager
def fakes_taken_back(root: nn.Module) -> Iterator[None]:
    """Enter a context after which no part of `ModelState`, and no cached function, holds a new fake tensor.

    What holds one has its old value again, and a container its old items. All other changes stay.
    """
    state = ModelState(root)
    try:
        yield
    finally:
        state.put_back(fakes_alone=True)
        forget_cached_fakes()


class ModelState:
    """What a model holds at one time: attributes of its modules, buffers, variables of its classes and of
    their files, objects of people's classes that one of them holds.
    """

    def __init__(self, root: nn.Module) -> None:
        owners: dict[int, Any] = {id(owner): owner for owner in (*root.modules(), *files_of_owners(root))}
        for owner in list(owners.values()):
            for _, value in _variables(owner):
                _add_objects(owners, value)
        self._variables = [(owner, dict(_variables(owner))) for owner in owners.values()]
        self._items = {
            id(held): (held, items_of(held))
            for _, variables in self._variables
            for value in variables.values()
            if isinstance(value, CONTAINERS)
            for held in containers_in(value)
        }

    def put_back(self, *, fakes_alone: bool = False) -> None:
        """Put back what has changed; with `fakes_alone`, only what holds a fake tensor now."""
        for held, old in self._items.values():
            if not has_items(held, old) and (not fakes_alone or _holds_fakes(held)):
                held.clear()
                held.update(old) if isinstance(held, (dict, set)) else held.extend(old)
        for owner, variables in self._variables:
            now = dict(_variables(owner))
            for name in dict.fromkeys((*now, *variables)):
                value, old = now.get(name, _ABSENT), variables.get(name, _ABSENT)
                if value is not old and (not fakes_alone or _holds_fakes(value)):
                    _put_back(owner, name, old)


def _add_objects(owners: dict[int, Any], value: Any, depth: int = DEPTH) -> None:
    """Add the objects that a value is, or holds, to those whose attributes are put back."""
    if depth == 0 or id(value) in owners:
        return
    if attributes_of_object(value) is not None:
        owners[id(value)] = value
    for inner in _inner(value):
        _add_objects(owners, inner, depth - 1)


def _variables(owner: Any) -> Iterator[tuple[str, Any]]:
    if (attributes := attributes_of_object(owner)) is not None:
        yield from attributes.items()
        return
    is_module = isinstance(owner, nn.Module)
    for name, value in vars(owner).items():
        if is_plain_attribute(name) or name == "_buffers" if is_module else not name.startswith("__"):
            yield name, value


def _put_back(owner: Any, name: str, value: Any) -> None:
    if isinstance(owner, type):  # Its variables cannot be assigned in its dict.
        delattr(owner, name) if value is _ABSENT else setattr(owner, name, value)
    elif value is _ABSENT:
        del vars(owner)[name]
    else:
        vars(owner)[name] = value


def _holds_fakes(value: Any, depth: int = DEPTH) -> bool:
    if isinstance(value, torch.Tensor):
        return is_fake(value)
    return depth > 0 and any(_holds_fakes(inner, depth - 1) for inner in _inner(value))


def _inner(value: Any) -> Iterable[Any]:
    return [*inner_values(value), *(attributes_of_object(value) or {}).values()]
