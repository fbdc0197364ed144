"""Fake tensors that a trace leaves in a model: `forward` keeps them in an attribute, a dict or a list.

The next trace would take them for constants without a value, and the user's own model would compute with
them.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

from fakexport.fake import forget_cached_fakes, is_fake

from .containers import CONTAINERS, DEPTH, containers_in, has_items, inner_values, items_of
from .module_attributes import is_plain_attribute
from .shared_variables import files_of_owners

__all__ = ["fakes_taken_back"]

_ABSENT = object()


@contextmanager
def fakes_taken_back(root: nn.Module) -> Iterator[None]:
    """Enter a context after which no attribute of a module, no buffer that `forward` registered, no variable
    of the classes and their files, and no cached function holds a fake tensor that it did not hold before.

    What holds one has its old value again, and a container its old items. All other changes stay.
    """
    owners = (*root.modules(), *files_of_owners(root))
    before = [(owner, dict(_variables(owner))) for owner in owners]
    items = {
        id(held): (held, items_of(held))
        for _, variables in before
        for value in variables.values()
        if isinstance(value, CONTAINERS)
        for held in containers_in(value)
    }
    try:
        yield
    finally:
        for held, old in items.values():
            if not has_items(held, old) and _holds_fakes(held):
                held.clear()
                held.extend(old) if isinstance(held, list) else held.update(old)
        for owner, variables in before:
            for name, value in list(_variables(owner)):
                old = variables.get(name, _ABSENT)
                if value is not old and _holds_fakes(value):
                    _put_back(owner, name, old)
        forget_cached_fakes()


def _variables(owner: Any) -> Iterator[tuple[str, Any]]:
    is_module = isinstance(owner, nn.Module)
    for name, value in vars(owner).items():
        if is_plain_attribute(name) or name == "_buffers" if is_module else not name.startswith("__"):
            yield name, value


def _put_back(owner: Any, name: str, value: Any) -> None:
    if isinstance(owner, type):
        delattr(owner, name) if value is _ABSENT else setattr(owner, name, value)
    elif value is _ABSENT:
        del vars(owner)[name]
    else:
        vars(owner)[name] = value


def _holds_fakes(value: Any, depth: int = DEPTH) -> bool:
    if isinstance(value, torch.Tensor):
        return is_fake(value)
    return depth > 0 and any(_holds_fakes(inner, depth - 1) for inner in inner_values(value))
