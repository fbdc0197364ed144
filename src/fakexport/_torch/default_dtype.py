"""torch's default floating-point dtype, which is global to the process. Seen on torch 2.11 to 2.13."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch


@contextmanager
def default_dtype(dtype: torch.dtype | None) -> Iterator[None]:
    """Set the default dtype in this block, unless `dtype` is None.

    On exit, the previous default dtype is restored, even if the block changed it.
    """
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype or before)
    try:
        yield
    finally:
        torch.set_default_dtype(before)
