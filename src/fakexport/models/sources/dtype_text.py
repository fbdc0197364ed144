"""Parse and format floating point dtypes."""

from __future__ import annotations

import torch

from fakexport.error import InvalidValue


def parse_dtype(given: str | torch.dtype) -> torch.dtype:
    """Return the floating point dtype for a name such as `bfloat16` or `torch.bfloat16`.

    A dtype is returned unchanged.

    Raises:
        ValueError: the dtype is unknown or is not a floating point dtype.
    """
    dtype = getattr(torch, given.removeprefix("torch."), None) if isinstance(given, str) else given
    if not isinstance(dtype, torch.dtype) or not dtype.is_floating_point:
        shown = repr(given) if isinstance(given, str) else given
        raise InvalidValue(f"unknown floating-point dtype {shown}: use float32, bfloat16, float16 or float64")
    return dtype


def dtype_text(dtype: torch.dtype) -> str:
    """Return the name of a dtype without `torch.`."""
    return str(dtype).removeprefix("torch.")
