"""Whether the containers that a call returned can be made once more: only if it made them itself."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Collection
from typing import Any

from fakexport._torch.block_recordings import NotReplayable
from fakexport._torch.pytree import container_children, rebuilt

_PLAIN = (tuple, list, dict, OrderedDict)


def refuse_known_containers(result: Any, known: Collection[int]) -> None:
    """Raise if the containers of a result are not its own: the caller may write to them, or ask `is`.

    Args:
        result: What the call returned.
        known: The `id` of all objects that the call could reach.
    Raises:
        NotReplayable: A container was there before, is returned twice, or has more than its children.
    """
    seen: set[int] = set()
    _refuse(result, set(known), seen)
    if not _alike(result, rebuilt(result)):
        raise NotReplayable(f"it returns a {type(result).__name__}")


def _refuse(value: Any, known: set[int], seen: set[int]) -> None:
    children = container_children(value)
    if not children:
        if children is not None and isinstance(value, (list, dict)) and id(value) in known | seen:
            raise NotReplayable("it returns a container from outside")
        return
    if id(value) in known or id(value) in seen:
        raise NotReplayable("it returns a container from outside, or twice")
    seen.add(id(value))
    for child in children:
        _refuse(child, known, seen)


def _alike(a: Any, b: Any) -> bool:
    """Return whether a container that was made from the leaves of another has all that the other has."""
    if a is b:
        return True
    mine, theirs = container_children(a), container_children(b)
    if mine is None or theirs is None or type(a) is not type(b) or len(mine) != len(theirs):
        return False
    if type(a) not in _PLAIN and not _alike_inside(a, b):
        return False
    return all(map(_alike, mine, theirs))


def _alike_inside(a: Any, b: Any) -> bool:
    mine, theirs = getattr(a, "__dict__", {}), getattr(b, "__dict__", {})
    return mine.keys() == theirs.keys() and all(
        _alike(value, theirs[name]) or (isinstance(value, (int, str)) and value == theirs[name])
        for name, value in mine.items()
    )
