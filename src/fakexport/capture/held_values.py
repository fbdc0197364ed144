"""What a variable holds, as something that shows later whether it was changed."""

from __future__ import annotations

from typing import Any

__all__ = ["held_value", "is_same"]

# A list in a dict in a dict; what is deeper is compared by identity.
_DEPTH = 3


def held_value(value: Any, depth: int = _DEPTH) -> Any:
    """Return the value itself, or of a list, dict or set, what is in it now."""
    if depth == 0:
        return value
    if type(value) is dict:
        return tuple((key, held_value(item, depth - 1)) for key, item in value.items())
    if type(value) in (list, tuple):
        return tuple(held_value(item, depth - 1) for item in value)
    return tuple(value) if type(value) is set else value


def is_same(old: Any, new: Any) -> bool:
    """Return whether nothing was assigned: the same object, an equal number or text, a container of such."""
    if old is new:
        return True
    if type(old) is not type(new):
        return False
    if isinstance(old, tuple):
        return len(old) == len(new) and all(map(is_same, old, new))
    return isinstance(old, (bool, int, float, complex, str, bytes)) and bool(old == new)
