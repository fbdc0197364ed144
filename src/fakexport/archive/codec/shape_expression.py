"""Build a sympy expression from the tree of its text: a fixed table of functions, and limits on numbers."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import cache
from typing import Any

import sympy

from fakexport._torch.symbolic_numbers import infinite_integer, shape_functions
from fakexport.documents import DocumentError

from .expression_text import Binary, Call, Name, Number, Quoted, Tree, Unary, parse_expression

__all__ = ["ShapeExpressions"]

MAX_BITS = 256
MAX_POWER = 64
MAX_ARGUMENTS = 200
MAX_DISTINCT = 200_000

_SYMBOL = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,63}", re.ASCII)
_ASSUMPTIONS = frozenset(
    [
        "commutative",
        "complex",
        "extended_real",
        "finite",
        "imaginary",
        "infinite",
        "integer",
        "negative",
        "nonnegative",
        "nonpositive",
        "nonzero",
        "positive",
        "real",
        "zero",
        "rational",
        "even",
        "odd",
        "hermitian",
    ]
)
_LITERALS = ("Integer", "Float", "Rational", "Symbol", "str")
_POWERS = frozenset(("Pow", "PowByNatural", "FloatPow", "LShift", "RShift"))


@cache
def _functions() -> dict[str, Callable[..., Any]]:
    names = [
        "Abs",
        "Add",
        "And",
        "Eq",
        "Equality",
        "ExprCondPair",
        "Ge",
        "GreaterThan",
        "Gt",
        "ITE",
        "Le",
        "LessThan",
        "Lt",
        "Mul",
        "Ne",
        "Not",
        "Or",
        "Piecewise",
        "Pow",
        "StrictGreaterThan",
        "StrictLessThan",
        "Unequality",
        "Xor",
        "ceiling",
        "floor",
    ]
    own = {name: getattr(sympy, name) for name in names if hasattr(sympy, name)}
    own["ExprCondPair"] = sympy.functions.elementary.piecewise.ExprCondPair
    return {**own, **shape_functions()}


@cache
def _operators() -> dict[str, str]:
    return {"+": "Add", "*": "Mul", "**": "Pow", "//": "FloorDiv", "%": "Mod", "/": "IntTrueDiv"} | {
        "<": "StrictLessThan", "<=": "LessThan", ">": "StrictGreaterThan", ">=": "GreaterThan",
        "==": "Equality", "!=": "Unequality", "or": "Or", "|": "Or", "and": "And", "&": "And",
        "<<": "LShift", ">>": "RShift",
    }  # fmt: skip


@cache
def _constants() -> dict[str, Any]:
    return {
        "true": sympy.true, "false": sympy.false, "True": sympy.true, "False": sympy.false,
        "oo": sympy.oo, "int_oo": infinite_integer(),
    }  # fmt: skip


class ShapeExpressions:
    """Reads the expressions of one program, each distinct text once.

    Args:
        on_symbol: Called with each new symbol.
    """

    def __init__(self, on_symbol: Callable[[Any], None]) -> None:
        self._on_symbol = on_symbol
        self._known: dict[str, Any] = {}
        self._symbols: dict[str, Any] = {}

    def read(self, text: str) -> Any:
        """Return the expression of a text.

        Raises:
            DocumentError: it is not a shape expression, or its numbers exceed any size.
        """
        expression = self._known.get(text)
        if expression is None:
            if len(self._known) >= MAX_DISTINCT:
                raise DocumentError(f"more than {MAX_DISTINCT} distinct expressions")
            try:
                expression = self._build(parse_expression(text))
            except DocumentError:
                raise
            except Exception as error:  # sympy raises all sorts of exceptions for arguments that do not fit
                raise DocumentError(f"not a shape expression: {type(error).__name__}") from error
            self._known[text] = expression
        return expression

    def _build(self, tree: Tree) -> Any:
        match tree:
            case Number(text):
                return _number(text)
            case Name(name):
                constant = _constants().get(name)
                return self._bare_symbol(name) if constant is None else constant
            case Call(function, args, options) if function in _LITERALS:
                return self._literal(function, args, options)
            case Call(function, args, ()):
                return _applied(function, [self._build(argument) for argument in args])
            case Unary("-", operand):
                return _applied("Mul", [sympy.Integer(-1), self._build(operand)])
            case Unary("not" | "~", operand):
                return _applied("Not", [self._build(operand)])
            case Unary("+", operand):
                return self._build(operand)
            case Binary("-", left, right):
                return _applied("Add", [self._build(left), self._build(Unary("-", right))])
            case Binary(sign, left, right) if sign in _operators():
                return _applied(_operators()[sign], [self._build(left), self._build(right)])
        raise DocumentError("not a shape expression")

    def _literal(self, kind: str, args: tuple[Tree, ...], options: tuple[tuple[str, Tree], ...]) -> Any:
        match kind, args:
            case "Symbol", (Quoted(name),):
                return self._symbol(name, {option: _truth(option, value) for option, value in options})
            case "Float", (Quoted(text) | Number(text),) if all(
                name in ("precision", "dps") for name, _ in options
            ):
                return sympy.Float(_decimal(text), precision=53)
            case "Integer", (value,) if not options:
                return _number(_signed(value))
            case "Rational", (over, under) if not options:
                return _limited(sympy.Rational(_number(_signed(over)), _number(_signed(under))))
        raise DocumentError(f"not a {kind} of a shape expression")

    def _symbol(self, name: str, assumptions: dict[str, bool]) -> Any:
        known = self._symbols.get(name)
        if not _SYMBOL.fullmatch(name):
            raise DocumentError(f"{name[:80]!r} is not a symbol name")
        symbol = sympy.Symbol(name, **assumptions)
        if known is None:
            self._symbols[name] = symbol
            self._on_symbol(symbol)
        elif known != symbol:
            raise DocumentError(f"the symbol {name} with two sets of assumptions")
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
        raise DocumentError(f"{function[:80]!r} is not a function of shape expressions")
    if len(args) > MAX_ARGUMENTS:
        raise DocumentError(f"{function} of {len(args)} arguments; the limit is {MAX_ARGUMENTS}")
    if function in _POWERS:
        _refuse_large_power(args)
    return _limited(build(*args))


def _refuse_large_power(args: list[Any]) -> None:
    """Refuse `9**9**9`, which would be computed, with all the memory and time that takes."""
    if len(args) != 2 or (args[1].is_number and not abs(args[1]) <= MAX_POWER):
        raise DocumentError(f"a power above {MAX_POWER} in a shape expression")


def _limited(expression: Any) -> Any:
    if isinstance(expression, sympy.Integer) and int(expression).bit_length() > MAX_BITS:
        raise DocumentError("a number larger than any size in a shape expression")
    if expression in (sympy.zoo, sympy.nan):
        raise DocumentError("a division by zero in a shape expression")
    return expression


def _truth(option: str, value: Tree) -> bool:
    if option not in _ASSUMPTIONS or value not in (Name("True"), Name("False")):
        raise DocumentError(f"{option[:40]!r} is not an assumption about a symbol")
    return value == Name("True")


def _signed(value: Tree) -> str:
    match value:
        case Number(text):
            return text
        case Unary("-", Number(text)):
            return f"-{text}"
    raise DocumentError("expected a number in a shape expression")


def _number(text: str) -> Any:
    if len(text) > 100:
        raise DocumentError("a number larger than any size in a shape expression")
    return sympy.Integer(int(text)) if text.lstrip("-").isdecimal() else sympy.Float(_decimal(text))


def _decimal(text: str) -> float:
    if len(text) > 400 or not re.fullmatch(r"-?[\d.]+(?:[eE][+-]?\d{1,4})?", text, re.ASCII):
        raise DocumentError("not a number of a shape expression")
    return float(text)
