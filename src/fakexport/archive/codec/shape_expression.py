"""Build a sympy expression from a syntax tree. A table lists the allowed functions; numbers are limited."""

from __future__ import annotations

import ast
import math
import re
from collections.abc import Callable, Mapping
from functools import cache
from typing import Any

import sympy

from fakexport._torch.tracing.symbolic_numbers import infinite_integer, shape_functions
from fakexport.files.documents import DocumentError

MAX_BITS = 256
MAX_POWER = 64
MAX_ARGUMENTS = 200
MAX_DISTINCT = 200_000

_SYMBOL = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,63}", re.ASCII)
_ASSUMPTIONS = frozenset({
    "commutative", "complex", "extended_real", "finite", "imaginary", "infinite", "integer", "negative",
    "nonnegative", "nonpositive", "nonzero", "positive", "real", "zero", "rational", "even", "odd",
    "hermitian",
})  # fmt: skip
_DECIMAL = re.compile(r"-?[\d.]+(?:[eE][+-]?\d{1,4})?", re.ASCII)
_LITERALS = ("Integer", "Float", "Rational", "Symbol", "str")
_POWERS = frozenset(("Pow", "PowByNatural", "FloatPow", "LShift", "RShift"))


@cache
def _functions() -> dict[str, Callable[..., Any]]:
    names = (
        "Abs", "Add", "And", "Eq", "Equality", "ExprCondPair", "Ge", "GreaterThan", "Gt", "ITE", "Le",
        "LessThan", "Lt", "Mul", "Ne", "Not", "Or", "Piecewise", "Pow", "StrictGreaterThan",
        "StrictLessThan", "Unequality", "Xor", "ceiling", "floor",
    )  # fmt: skip
    own = {name: getattr(sympy, name) for name in names if hasattr(sympy, name)}
    own["ExprCondPair"] = sympy.functions.elementary.piecewise.ExprCondPair
    return {**own, **shape_functions()}


_OPERATORS: Mapping[type[ast.AST], str] = {
    ast.Add: "Add", ast.Mult: "Mul", ast.Pow: "Pow", ast.FloorDiv: "FloorDiv", ast.Mod: "Mod",
    ast.Div: "IntTrueDiv", ast.LShift: "LShift", ast.RShift: "RShift",
    ast.Lt: "StrictLessThan", ast.LtE: "LessThan", ast.Gt: "StrictGreaterThan", ast.GtE: "GreaterThan",
    ast.Eq: "Equality", ast.NotEq: "Unequality",
    ast.Or: "Or", ast.BitOr: "Or", ast.And: "And", ast.BitAnd: "And",
}  # fmt: skip


@cache
def _constants() -> dict[str, Any]:
    return {
        "true": sympy.true, "false": sympy.false, "oo": sympy.oo, "int_oo": infinite_integer(),
    }  # fmt: skip


class ShapeExpressions:
    """Parse the expressions of one program, each only once. `on_symbol` is called with each new symbol."""

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
                expression = self._build(parse_expression(text))
            except DocumentError:
                raise
            except Exception as error:  # sympy raises many types of exceptions for invalid arguments
                raise DocumentError(f"not a shape expression: {type(error).__name__}") from error
            self._known[text] = expression
        return expression

    def _build(self, node: ast.expr) -> Any:
        match node:
            case ast.Constant(bool() as value):
                return sympy.true if value else sympy.false
            case ast.Constant(int() | float() as value):
                return _number(value)
            case ast.Name(name):
                constant = _constants().get(name)
                return self._bare_symbol(name) if constant is None else constant
            case ast.Call(ast.Name(function), args) if function in _LITERALS:
                return self._literal(function, args, node.keywords)
            case ast.Call(ast.Name(function), args, []):
                return self._call(function, *args)
            case ast.UnaryOp(ast.USub(), operand):
                return self._call("Mul", ast.Constant(-1), operand)
            case ast.UnaryOp(ast.Not() | ast.Invert(), operand):
                return self._call("Not", operand)
            case ast.UnaryOp(ast.UAdd(), operand):
                return self._build(operand)
            case ast.BinOp(left, ast.Sub(), right):
                return self._call("Add", left, ast.UnaryOp(ast.USub(), right))
            case ast.BinOp(left, sign, right) if type(sign) in _OPERATORS:
                return self._call(_OPERATORS[type(sign)], left, right)
            case ast.Compare(left, [sign], [right]) if type(sign) in _OPERATORS:
                return self._call(_OPERATORS[type(sign)], left, right)
            case ast.BoolOp(sign, values):
                return self._call(_OPERATORS[type(sign)], *values)
        raise DocumentError("not a shape expression")

    def _call(self, function: str, *args: ast.expr) -> Any:
        return _applied(function, [self._build(argument) for argument in args])

    def _literal(self, kind: str, args: list[ast.expr], options: list[ast.keyword]) -> Any:
        match kind, args:
            case "Symbol", [ast.Constant(str(name))]:
                return self._symbol(name, dict(map(_assumption, options)))
            case "Float", [ast.Constant(str() | int() | float() as value)] if all(
                option.arg in ("precision", "dps") for option in options
            ):
                return sympy.Float(_decimal(value), precision=53)
            case "Integer", [value] if not options:
                return _number(_signed(value))
            case "Rational", [over, under] if not options:
                return _limited(sympy.Rational(_number(_signed(over)), _number(_signed(under))))
        raise DocumentError(f"not a valid {kind} in a shape expression")

    def _symbol(self, name: str, assumptions: dict[str, bool]) -> Any:
        known = self._symbols.get(name)
        if not _SYMBOL.fullmatch(name):
            raise DocumentError(f"{name[:80]!r} is not a symbol name")
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
        raise DocumentError(f"{function[:80]!r} is not a supported function in shape expressions")
    if len(args) > MAX_ARGUMENTS:
        raise DocumentError(f"{function} with {len(args)} arguments; the limit is {MAX_ARGUMENTS}")
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


def _assumption(option: ast.keyword) -> tuple[str, bool]:
    match option:
        case ast.keyword(str(name), ast.Constant(bool() as value)) if name in _ASSUMPTIONS:
            return name, value
    raise DocumentError(f"{str(option.arg)[:40]!r} is not an assumption about a symbol")


def _signed(node: ast.expr) -> int | float:
    match node:
        case ast.UnaryOp(ast.USub(), ast.Constant(int() | float() as value)):
            return -value
        case ast.Constant(int() | float() as value):
            return value
    raise DocumentError("expected a number in a shape expression")


def _number(value: float) -> Any:
    return _limited(sympy.Integer(value)) if isinstance(value, int) else sympy.Float(_decimal(value))


def _decimal(value: float | str) -> float:
    if isinstance(value, str) and (len(value) > 400 or not _DECIMAL.fullmatch(value)):
        raise DocumentError("not a valid number in a shape expression")
    if not math.isfinite(number := float(value)):
        raise DocumentError("a shape expression contains a number that is too large for a size")
    return number


MAX_LENGTH = 20_000
MAX_TOKENS = 12_000

# Text with other Python syntax, such as comments or escapes, contains a part that does not match.
_TOKEN = re.compile(
    r"\s*(?:(?:\d+\.\d*|\.\d+|\d+)(?:[eE][+-]?\d+)?(?![\w.])|[A-Za-z_]\w*|'[^'\"\\\x00-\x1f]*'"
    r"|,(?!\s*\))|\*\*|//|<<|>>|<=|>=|==|!=|[-+*/%()\[\]{}=.<>&|~^])",
    re.ASCII,
)


def parse_expression(text: str) -> ast.expr:
    """Return the syntax tree of an expression. The caller must check every node of it."""
    if len(text) > MAX_LENGTH:
        raise DocumentError(f"an expression of {len(text)} characters; the limit is {MAX_LENGTH}")
    text = text.strip()
    position = count = 0
    while position < len(text):
        token = _TOKEN.match(text, position)
        if token is None:
            raise DocumentError(f"{text[position : position + 20]!r} is not part of a shape expression")
        position, count = token.end(), count + 1
    if count > MAX_TOKENS:
        raise DocumentError(f"an expression of {count} parts; the limit is {MAX_TOKENS}")
    try:
        return ast.parse(text, mode="eval").body
    except (SyntaxError, ValueError) as error:
        raise DocumentError(f"not an expression: {str(error).partition(' (<')[0][:80]}") from None
    except (RecursionError, MemoryError):
        raise DocumentError("an expression that is nested too deeply") from None
