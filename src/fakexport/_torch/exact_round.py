"""`round(size, -1)` of a varying size: torch returns the size itself. Seen on torch 2.13.

Source: `torch/__init__.py:SymInt.__round__`.
"""

from __future__ import annotations

from typing import Any

import torch

from .patching import Patches


def exact_round() -> Patches:
    """Return a context in which it is what Python makes of it: halves go to the even multiple."""

    def rounded(size: Any, ndigits: int | None = None) -> Any:
        if ndigits is None or ndigits >= 0:
            return size
        unit = 10**-ndigits
        count = (2 * size + unit) // (2 * unit)
        is_half = 1 - torch.sym_min((2 * size + unit) % (2 * unit), 1)
        return (count - is_half * (count % 2)) * unit

    return Patches({(torch.SymInt, "__round__"): rounded})
