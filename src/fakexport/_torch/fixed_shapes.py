"""A shape that an input must have: a size that may vary is fixed by it, in a trace and in the program.

Seen on torch 2.13. Source: `torch/__init__.py:_check`.
"""

from __future__ import annotations

from functools import partial

import torch


def check_shape(tensor: torch.Tensor, shape: tuple[int, ...], message: str) -> None:
    """Raise `RuntimeError` unless a tensor has a shape; the check does not count as a use of the tensor."""
    with torch._C.DisableTorchFunction():
        sizes = tuple(tensor.shape)
    for size, taken in zip(sizes, shape, strict=True):
        torch._check(size == taken, partial(str, message))
