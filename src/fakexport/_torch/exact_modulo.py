"""The modulo of a varying size by a float.

torch takes `x.shape[0] % 2.5` for an integer when it decides a condition: `x.shape[0] % 2.5 == 0.5` is false
for every size, and the program then differs from eager mode without an error. For `height % 0.5` it raises a
ValueRangeError. A size and a float are fractions, though, and so is what is left of one: that of `a / b` by
`c / d` is `(a * d) % (c * b) / (b * d)`. Python computes the same, unless a number has so many digits that
the result is rounded. The other arithmetic of Python on sizes does not differ from eager mode. Seen on torch
2.13 and 2.15.

Source: `torch/fx/experimental/sym_node.py:_make_node_magic`, `torch/utils/_sympy/functions.py:Mod`.
"""

from __future__ import annotations

from functools import reduce
from typing import Any

import sympy
from torch.fx.experimental.proxy_tensor import get_proxy_mode
from torch.fx.experimental.sym_node import SymNode
from torch.utils._sympy.functions import FloatTrueDiv, IntTrueDiv, ToFloat

from .patching import Patches, in_force

INEXACT_MODULO = "torch cannot decide conditions on the modulo of a size by a float"

# Largest denominator, and largest numerator of a number. Products of them and a size are exact as floats, and
# 0.1 has larger ones.
_LARGEST = 2**15
_POWERS_OF_TWO = [2**exponent for exponent in range(16)]

# An integer or a term of integers, and a power of two.
_Fraction = tuple[Any, int]


def exact_modulo() -> Patches:
    """Return a context in which such a modulo is what it is in Python.

    Where the numbers are none whose result is exact, such as 0.1, it raises a RuntimeError that begins with
    `INEXACT_MODULO`.
    """
    stock = in_force(SymNode, "mod")

    def mod(node: SymNode, other: SymNode) -> Any:
        # In the mode, torch records the operator, and then comes back without the mode.
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

    return Patches({(SymNode, "mod"): mod})


def _scaled(node: SymNode, expr: Any, factor: int) -> SymNode:
    hint: Any = node.hint
    scaled = None if hint is None else int(hint * factor)
    return SymNode(sympy.sympify(expr), node.shape_env, int, scaled, fx_node=node.fx_node)


def _fraction(expr: Any) -> _Fraction | None:
    """Return a term as numerator and denominator, the latter a power of two; None where it may be rounded."""
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
