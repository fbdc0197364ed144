"""Sizes that a program is said to have, checked without a use of the tensor. Seen on torch 2.13.

A trace counts the functions of torch that are called, and names nodes by the count.

Source: `torch/__init__.py:_check`, `torch/csrc/utils/disable_torch_function.cpp`.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import torch


def check_shape(value: Any, shape: Sequence[int], message: str) -> None:
    """Check that a tensor has a shape; in a trace, symbolic sizes become these numbers.

    Args:
        value: Anything; only a tensor is checked.
        shape: Its shape, of as many dimensions.
        message: What the error says.
    Raises:
        RuntimeError: it has another shape.
    """
    if not isinstance(value, torch.Tensor):
        return
    with torch._C.DisableTorchFunction():
        sizes = tuple(value.shape)
    for size, taken in zip(sizes, shape, strict=True):
        torch._check(size == taken, partial(str, message))
