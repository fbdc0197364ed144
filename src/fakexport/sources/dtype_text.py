"""Floating dtypes as people write them."""

from __future__ import annotations

import torch

from fakexport.error import InvalidValue


def parse_dtype(text: str) -> torch.dtype:
    """Return the floating dtype of a name, `bfloat16` or `torch.bfloat16`.

    Raises:
        ValueError: no such dtype.
    """
    dtype = getattr(torch, text.removeprefix("torch."), None)
    if not isinstance(dtype, torch.dtype) or not dtype.is_floating_point:
        raise InvalidValue(
            f"unknown floating-point dtype {text!r}: write float32, bfloat16, float16 or float64"
        )
    return dtype


def dtype_text(dtype: torch.dtype) -> str:
    """Return torch's name of a dtype without the `torch.`."""
    return str(dtype).removeprefix("torch.")
