"""Compute with dynamic sizes as Python does, in cases in which torch's results differ or torch fails.

Bounds: for `u0 == 1024 * s0`, torch divides the bounds of `u0` and rounds the quotients to integers through a
float. The quotient of 2**63 - 2, the upper bound of every data-dependent size, is rounded up. torch then
finds that `1024 * s0` may exceed `u0`, and raises an AssertionError. This affects models that compare the
number of image or audio tokens with the number of features. Seen on torch 2.11 to 2.13. Source:
`torch/fx/experimental/symbolic_shapes.py:ShapeEnv._set_replacement`,
`torch/utils/_sympy/functions.py:FloorToInt`.

Rounding: for `round(size, -1)`, torch returns the size unchanged. For `round(size / 2)`, torch adds Python's
`round` to the program, but the program's format does not support it. Seen on torch 2.13. Source:
`torch/__init__.py:SymInt.__round__`, `SymFloat.__round__`; pytorch#138852.

Modulo by a float: when torch decides a condition, it assumes that `x.shape[0] % 2.5` is an integer. So
`x.shape[0] % 2.5 == 0.5` is false for every size, and the program then differs from eager mode without an
error. For `height % 0.5`, torch raises a ValueRangeError. This module treats sizes and floats as fractions:
`a / b` modulo `c / d` is `(a * d) % (c * b) / (b * d)`. Python computes the same result, unless a number has
so many digits that the result is rounded. Seen on torch 2.13 and 2.15. Source:
`torch/fx/experimental/sym_node.py:_make_node_magic`, `torch/utils/_sympy/functions.py:Mod`.

Equations: at the end of a trace, torch solves the guards on each size. It only uses the solutions to suggest
dynamic shapes in error messages, because the program contains the guards anyway. torch ignores guards that
sympy cannot solve. However, if one of them is an equation, the export raises a NotImplementedError. In SAM 2,
one equation says that a size is 64, and a second one divides and rounds this size. If sympy finds no
solution, this module uses the size in the example inputs, which satisfies every guard. If the size is
declared dynamic, torch then rejects it; otherwise, it keeps its guards. Seen on torch 2.13 and 2.15. Source:
`torch/fx/experimental/symbolic_shapes.py:DimConstraints.solve`.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import reduce
from typing import Any

import sympy
import torch
from sympy.solvers import inequalities
from torch.fx.experimental import symbolic_shapes
from torch.fx.experimental.proxy_tensor import get_proxy_mode
from torch.fx.experimental.sym_node import SymNode
from torch.fx.experimental.symbolic_shapes import DimConstraints
from torch.utils._sympy.functions import FloatTrueDiv, IntTrueDiv, ToFloat

from fakexport._torch.patching import Patches, in_force

INEXACT_MODULO = "torch cannot decide a condition on `size % x` if x is a float"

# The largest denominator, and the largest numerator of a constant. Products of such numbers with a size are
# exact as floats. The numerator and denominator of 0.1 are larger than this.
_LARGEST = 2**15
_POWERS_OF_TWO = [2**exponent for exponent in range(16)]

# The numerator, which is an integer or an integer expression, and the denominator, which is a power of two.
_Fraction = tuple[Any, int]


def exact_sizes() -> Patches:
    """Return a context in which sizes are computed as in Python, and equations do not fail an export.

    A modulo whose result is not exact, such as a modulo by 0.1, raises a RuntimeError that starts with
    `INEXACT_MODULO`.
    """
    rounded, rounded_float = _rounding()
    return Patches(
        {
            (symbolic_shapes, "FloorToInt"): _bound("FloorToInt", math.floor),
            (symbolic_shapes, "CeilToInt"): _bound("CeilToInt", math.ceil),
            (torch.SymInt, "__round__"): rounded,
            (torch.SymFloat, "__round__"): rounded_float,
            (SymNode, "mod"): _modulo(),
            (DimConstraints, "solve"): _solving(),
        }
    )


def _bound(name: str, exact: Callable[[Any], int]) -> Callable[[Any], Any]:
    stock = in_force(symbolic_shapes, name)

    def bound(number: Any) -> Any:
        return sympy.Integer(exact(number)) if isinstance(number, sympy.Rational) else stock(number)

    return bound


def _rounding() -> tuple[Callable[..., Any], Callable[..., Any]]:
    """Return `__round__` for symbolic integers and for symbolic floats. Halves round to the even multiple."""
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
        # This uses integer operations, because torch can print guards on these, but not on `torch.sym_ite`.
        below = math.floor(number)
        twice = 2 * (number - below)
        is_half_or_more = math.floor(twice)
        is_not_whole = math.ceil(twice) - is_half_or_more
        is_odd = below % 2
        return below + is_half_or_more * (is_not_whole + (1 - is_not_whole) * is_odd)

    return rounded, rounded_float


def _solving() -> Callable[[DimConstraints], None]:
    stock = in_force(DimConstraints, "solve")
    stock_reduce = in_force(inequalities, "reduce_inequalities")

    def solve(constraints: DimConstraints) -> None:
        def reduce(conditions: Any, symbol: sympy.Symbol) -> Any:
            try:
                return stock_reduce(conditions, symbol)
            except NotImplementedError:
                if not any(isinstance(each, sympy.Eq) for each in conditions):
                    raise  # torch handles this error.
                return sympy.Eq(symbol, constraints._var_to_val[symbol])

        with Patches({(inequalities, "reduce_inequalities"): reduce}):
            stock(constraints)

    return solve


def _modulo() -> Callable[[SymNode, SymNode], Any]:
    stock = in_force(SymNode, "mod")

    def mod(node: SymNode, other: SymNode) -> Any:
        # If a proxy mode is active, torch records the operator, and then calls this again without the mode.
        if float not in (node.pytype, other.pytype) or get_proxy_mode() is not None:
            return stock(node, other)
        left, right = _fraction(node.expr), _fraction(other.expr)
        if left is None or right is None:
            raise RuntimeError(f"{INEXACT_MODULO}: {node} % {other}")
        denominator = left[1] * right[1]
        rest = stock(
            _scaled(node, left[0] * right[1], denominator), _scaled(other, right[0] * left[1], denominator)
        )
        hint = None if rest.hint is None else rest.hint / denominator
        expr = IntTrueDiv(rest.expr, sympy.Integer(denominator))
        return SymNode(expr, node.shape_env, float, hint, fx_node=rest.fx_node)

    return mod


def _scaled(node: SymNode, expr: Any, factor: int) -> SymNode:
    hint: Any = node.hint
    scaled = None if hint is None else int(hint * factor)
    return SymNode(sympy.sympify(expr), node.shape_env, int, scaled, fx_node=node.fx_node)


def _fraction(expr: Any) -> _Fraction | None:
    """Return an expression as a fraction with a power of two as denominator, or None if it may be inexact."""
    match expr:
        case sympy.Integer() | sympy.Float():
            above, below = float(expr).as_integer_ratio()
            return (above, below) if max(abs(above), below) <= _LARGEST else None
        case ToFloat():
            return expr.args[0], 1
        case _ if expr.is_integer:
            return expr, 1
        case sympy.Mul() | sympy.Add() | IntTrueDiv() | FloatTrueDiv():
            operation = {sympy.Mul: _product, sympy.Add: _sum}.get(type(expr), _quotient)
            return reduce(operation, map(_fraction, expr.args))
    return None


def _product(left: _Fraction | None, right: _Fraction | None) -> _Fraction | None:
    return left and right and _limited(left[0] * right[0], left[1] * right[1])


def _sum(left: _Fraction | None, right: _Fraction | None) -> _Fraction | None:
    return left and right and _limited(left[0] * right[1] + right[0] * left[1], left[1] * right[1])


def _quotient(left: _Fraction | None, right: _Fraction | None) -> _Fraction | None:
    if left is None or right is None or right[0] not in _POWERS_OF_TWO:
        return None
    return _limited(left[0] * right[1], left[1] * int(right[0]))


def _limited(above: Any, below: int) -> _Fraction | None:
    return (above, below) if below <= _LARGEST else None
