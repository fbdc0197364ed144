"""`round(size, -1)` of a varying size: torch returns the size itself. `round(size / 2)`: torch puts Python's
`round` into the program, which its format does not have. Seen on torch 2.13.

Source: `torch/__init__.py:SymInt.__round__`, `SymFloat.__round__`; pytorch#138852.
"""

from __future__ import annotations

import math
from typing import Any

import torch

from .patching import Patches, in_force


def exact_round() -> Patches:
    """Return a context in which both are what Python makes of them: halves go to the even multiple."""
    stock = in_force(torch.SymFloat, "__round__")

    def rounded(size: Any, ndigits: int | None = None) -> Any:
        if ndigits is None or ndigits >= 0:
            return size
        unit = 10**-ndigits
        count = (2 * size + unit) // (2 * unit)
        is_half = 1 - torch.sym_min((2 * size + unit) % (2 * unit), 1)
        return (count - is_half * (count % 2)) * unit

    def rounded_float(number: Any, ndigits: int | None = None) -> Any:
        if ndigits is not None:
            return stock(number, ndigits)
        # In integers: torch can print a condition on these, and none on `torch.sym_ite`.
        below = math.floor(number)
        twice = 2 * (number - below)
        is_half_or_more = math.floor(twice)
        is_not_whole = math.ceil(twice) - is_half_or_more
        is_odd = below % 2
        return below + is_half_or_more * (is_not_whole + (1 - is_not_whole) * is_odd)

    return Patches({(torch.SymInt, "__round__"): rounded, (torch.SymFloat, "__round__"): rounded_float})
