"""Exact bounds of a size that a condition gives in terms of another one.

For `u0 == 1024 * s0`, torch divides the bounds of `u0` and rounds the quotients to integers by way of a
float. That of 2**63 - 2, the upper bound of every size that depends on data, is rounded up; torch then finds
that `1024 * s0` may be larger than `u0`, and raises an AssertionError. Models that compare the number of
image or audio tokens with their features run into it. Seen on torch 2.11 to 2.13.

Source: `torch/fx/experimental/symbolic_shapes.py:ShapeEnv._set_replacement`,
`torch/utils/_sympy/functions.py:FloorToInt`.
"""

from __future__ import annotations

from typing import Any

import sympy
from torch.fx.experimental import symbolic_shapes

from .patching import Patches, in_force


def exact_bounds() -> Patches:
    """Return a context in which the bounds of such a size are the integers that they are."""
    stock_floor, stock_ceil = (in_force(symbolic_shapes, name) for name in ("FloorToInt", "CeilToInt"))

    def floor(number: Any) -> Any:
        is_quotient = isinstance(number, sympy.Rational)
        return sympy.Integer(number.p // number.q) if is_quotient else stock_floor(number)

    def ceil(number: Any) -> Any:
        is_quotient = isinstance(number, sympy.Rational)
        return sympy.Integer(-(-number.p // number.q)) if is_quotient else stock_ceil(number)

    return Patches({(symbolic_shapes, "FloorToInt"): floor, (symbolic_shapes, "CeilToInt"): ceil})
