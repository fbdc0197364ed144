"""How much memory a strided tensor spans."""

from __future__ import annotations

from collections.abc import Sequence


def extent(shape: Sequence[int], strides: Sequence[int]) -> int:
    """Return the number of elements from the first to the last, both included; 0 if there are none."""
    if 0 in shape:
        return 0
    return 1 + sum((size - 1) * stride for size, stride in zip(shape, strides, strict=True))
