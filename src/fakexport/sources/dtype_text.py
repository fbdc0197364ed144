"""Floating dtypes as people write them."""

from __future__ import annotations

import torch

from fakexport.error import InvalidValue


def parse_dtype(given: str | torch.dtype) -> torch.dtype:
    """Return the floating dtype of a name, `bfloat16` or `torch.bfloat16`, or the dtype that is given.

    Raises:
        ValueError: no such dtype, or one of integers.
    """
    dtype = getattr(torch, given.removeprefix("torch."), None) if isinstance(given, str) else given
    if not isinstance(dtype, torch.dtype) or not dtype.is_floating_point:
        shown = repr(given) if isinstance(given, str) else given
        raise InvalidValue(
            f"unknown floating-point dtype {shown}: write float32, bfloat16, float16 or float64"
        )
    return dtype


def dtype_text(dtype: torch.dtype) -> str:
    """Return torch's name of a dtype without the `torch.`."""
    return str(dtype).removeprefix("torch.")
