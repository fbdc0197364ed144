"""Python text that makes a tensor: without values, or with few of them."""

from __future__ import annotations

from typing import Any

import torch

from .error import PythonSourceError
from .literal_text import literal_text

_FEW = 16


def empty_text(tensor: torch.Tensor, device: str) -> str:
    """Return text of a tensor of this shape, layout and dtype, without values.

    Raises:
        PythonSourceError: it is sparse, or of another layout without strides.
    """
    if tensor.layout is not torch.strided:
        raise PythonSourceError(f"a tensor is {tensor.layout}, and only strided tensors can be written")
    shape, strides = tuple(map(int, tensor.shape)), tuple(map(int, tensor.stride()))
    options = f"dtype={tensor.dtype}, device={device}"
    if strides == torch.empty(shape, device="meta").stride():
        return f"torch.empty({shape}, {options})"
    return f"torch.empty_strided({shape}, {strides}, {options})"


def small_text(value: torch.Tensor, device: str) -> str | None:
    """Return text of a tensor with its values, or None where they are many, or not exact as text."""
    if value.numel() > _FEW or value.numel() == 0 or not value.is_contiguous():
        return None
    again = torch.tensor(value.tolist(), dtype=value.dtype)
    if again.shape != value.shape or not torch.equal(_bytes(again), _bytes(value)):
        return None
    return f"torch.tensor({_nested(value.tolist())}, dtype={value.dtype}, device={device})"


def _nested(values: Any) -> str:
    return f"[{', '.join(map(_nested, values))}]" if isinstance(values, list) else literal_text(values)


def _bytes(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.detach().contiguous().flatten().view(torch.uint8)
