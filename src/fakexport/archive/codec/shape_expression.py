"""Build sympy expressions from shape expressions that torch wrote. Powers and results are limited."""

from __future__ import annotations

import re
from collections.abc import Callable
from fractions import Fraction
from functools import cache
from typing import Any

import sympy

from fakexport._torch.tracing.symbolic_numbers import infinite_integer, shape_functions
from fakexport.files.documents import DocumentError

from .shape_tree import MAX_BITS, SYMPY_FUNCTIONS, TORCH_FUNCTIONS, Call, Shape, Symbol, read_shape

MAX_POWER = 64
MAX_DISTINCT = 200_000

_POWERS = frozenset(("Pow", "PowByNatural", "FloatPow", "LShift", "RShift"))


@cache
def _functions() -> dict[str, Callable[..., Any]]:
    own = {name: getattr(sympy, name) for name in SYMPY_FUNCTIONS if hasattr(sympy, name)}
    own["ExprCondPair"] = sympy.functions.elementary.piecewise.ExprCondPair
    return {**own, **shape_functions(TORCH_FUNCTIONS)}


class ShapeExpressions:
    """Build the expressions of one program, each only once. `on_symbol` is called with each new symbol."""

    def __init__(self, on_symbol: Callable[[Any], None]) -> None:
        self._on_symbol = on_symbol
        self._known: dict[str, Any] = {}
        self._symbols: dict[str, Any] = {}

    def read(self, text: str) -> Any:
        """Return the sympy expression for a text that torch wrote."""
        expression = self._known.get(text)
        if expression is None:
            if len(self._known) >= MAX_DISTINCT:
                raise DocumentError(f"there are more than {MAX_DISTINCT} distinct expressions")
            try:
                expression = self._build(read_shape(text))
            except DocumentError:
                raise
            except Exception as error:  # sympy raises many types of exceptions for invalid arguments
                raise DocumentError(f"not a shape expression: {type(error).__name__}") from error
            self._known[text] = expression
        return expression

    def _build(self, shape: Shape) -> Any:
        match shape:
            case bool():
                return sympy.true if shape else sympy.false
            case int():
                return sympy.Integer(shape)
            case float():
                return sympy.Float(shape, precision=53)
            case Fraction():
                return sympy.Rational(shape.numerator, shape.denominator)
            case Symbol(name, assumptions):
                return (
                    self._bare_symbol(name) if assumptions is None else self._symbol(name, dict(assumptions))
                )
            case Call("oo"):
                return sympy.oo
            case Call("int_oo"):
                return infinite_integer()
        return _applied(shape.function, [self._build(argument) for argument in shape.arguments])

    def _symbol(self, name: str, assumptions: dict[str, bool]) -> Any:
        known = self._symbols.get(name)
        symbol = sympy.Symbol(name, **assumptions)
        if known is None:
            self._symbols[name] = symbol
            self._on_symbol(symbol)
        elif known != symbol:
            raise DocumentError(f"the symbol {name} occurs with two sets of assumptions")
        return symbol

    def _bare_symbol(self, name: str) -> Any:
        if name in self._symbols:
            return self._symbols[name]
        if re.fullmatch(r"s\d+", name):
            return self._symbol(name, {"positive": True, "integer": True})
        if re.fullmatch(r"[a-z]+\d+", name):
            return self._symbol(name, {"real": True} if name.startswith("z") else {"integer": True})
        raise DocumentError(f"{name[:80]!r} is not a symbol name")


def _applied(function: str, args: list[Any]) -> Any:
    build = _functions().get(function)
    if build is None:
        raise DocumentError(f"{function!r} is not a supported function in this version of torch")
    if function in _POWERS:
        _refuse_large_power(args)
    return _limited(build(*args))


def _refuse_large_power(args: list[Any]) -> None:
    """Reject powers such as `9**9**9`, because sympy would compute them without limits on memory and time."""
    if len(args) != 2 or (args[1].is_number and not abs(args[1]) <= MAX_POWER):
        raise DocumentError(f"a power above {MAX_POWER} in a shape expression")


def _limited(expression: Any) -> Any:
    if isinstance(expression, sympy.Integer) and int(expression).bit_length() > MAX_BITS:
        raise DocumentError("a shape expression contains a number that is too large for a size")
    if expression in (sympy.zoo, sympy.nan):
        raise DocumentError("a division by zero in a shape expression")
    return expression
