"""Containers of Python in a value, and whether their items are the same ones later."""

from __future__ import annotations

from collections import OrderedDict, defaultdict, deque
from collections.abc import Iterable, Iterator
from operator import is_
from typing import Any

CONTAINERS = (dict, list, tuple, set, deque)
DEPTH = 3


def containers_in(value: Any, depth: int = DEPTH) -> Iterator[Any]:
    """Yield the lists, dicts and sets in a value, and in each other."""
    if type(value) in (dict, list, set, OrderedDict, defaultdict, deque):
        yield value
    if depth and type(value) is not set:
        for inner in inner_values(value):
            yield from containers_in(inner, depth - 1)


def inner_values(value: Any) -> Iterable[Any]:
    """Return the values of a dict, the items of another container, nothing of anything else."""
    if isinstance(value, dict):
        return list(value.values())
    return value if isinstance(value, CONTAINERS) else ()


def items_of(container: Any) -> list[Any]:
    """Return the items that a container has now: of a dict, pairs."""
    return list(container.items()) if isinstance(container, dict) else list(container)


def has_items(container: Any, items: list[Any]) -> bool:
    """Return whether a container has the very same items as when `items_of` returned them."""
    new = items_of(container)
    return len(new) == len(items) and all(
        all(map(is_, a, b)) if isinstance(container, dict) else a is b
        for a, b in zip(new, items, strict=True)
    )
