"""Parse a shape expression that torch wrote into a tree. Functions come from a fixed table."""

from __future__ import annotations

import ast
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from itertools import chain
from typing import TypeAlias

from fakexport.files.documents import DocumentError

MAX_BITS = 256
MAX_ARGUMENTS = 200
MAX_LENGTH = 20_000
MAX_TOKENS = 12_000

# Text with other Python syntax, such as comments or escapes, contains a part that does not match.
_TOKEN = re.compile(
    r"\s*(?:(?:\d+\.\d*|\.\d+|\d+)(?:[eE][+-]?\d+)?(?![\w.])|[A-Za-z_]\w*|'[^'\"\\\x00-\x1f]*'"
    r"|,(?!\s*\))|\*\*|//|<<|>>|<=|>=|==|!=|[-+*/%()\[\]{}=.<>&|~^])",
    re.ASCII,
)
_SYMBOL = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,63}", re.ASCII)
_ASSUMPTIONS = frozenset({
    "commutative", "complex", "extended_real", "finite", "imaginary", "infinite", "integer", "negative",
    "nonnegative", "nonpositive", "nonzero", "positive", "real", "zero", "rational", "even", "odd",
    "hermitian",
})  # fmt: skip
_DECIMAL = re.compile(r"-?[\d.]+(?:[eE][+-]?\d{1,4})?", re.ASCII)
_LITERALS = ("Integer", "Float", "Rational", "Symbol", "str")
_OPERATORS: Mapping[type[ast.AST], str] = {
    ast.Add: "Add", ast.Mult: "Mul", ast.Pow: "Pow", ast.FloorDiv: "FloorDiv", ast.Mod: "Mod",
    ast.Div: "IntTrueDiv", ast.LShift: "LShift", ast.RShift: "RShift",
    ast.Lt: "StrictLessThan", ast.LtE: "LessThan", ast.Gt: "StrictGreaterThan", ast.GtE: "GreaterThan",
    ast.Eq: "Equality", ast.NotEq: "Unequality",
    ast.Or: "Or", ast.BitOr: "Or", ast.And: "And", ast.BitAnd: "And",
}  # fmt: skip

RELATIONS: Mapping[str, str] = {
    "StrictLessThan": "<", "Lt": "<", "LessThan": "<=", "Le": "<=", "StrictGreaterThan": ">", "Gt": ">",
    "GreaterThan": ">=", "Ge": ">=", "Equality": "==", "Eq": "==", "Unequality": "!=", "Ne": "!=",
}  # fmt: skip
"""Relations by the names that sympy writes."""
TRUTHS = frozenset((*RELATIONS, "And", "ITE", "Not", "Or", "Xor"))
"""Functions whose value is a boolean."""
SYMPY_FUNCTIONS = frozenset(
    (*TRUTHS, "Abs", "Add", "ExprCondPair", "Mul", "Piecewise", "Pow", "ceiling", "floor")
)
TORCH_FUNCTIONS = frozenset((
    "BitwiseFn_bitwise_and", "BitwiseFn_bitwise_or", "BitwiseFn_bitwise_xor", "CeilDiv", "CeilToInt",
    "CleanDiv", "FloatPow", "FloatTrueDiv", "FloorDiv", "FloorToInt", "Identity", "IntTrueDiv",
    "IsNonOverlappingAndDenseIndicator", "LShift", "Max", "Min", "Mod", "ModularIndexing",
    "OpaqueUnaryFn_acos", "OpaqueUnaryFn_asin", "OpaqueUnaryFn_atan", "OpaqueUnaryFn_cos",
    "OpaqueUnaryFn_cosh", "OpaqueUnaryFn_exp", "OpaqueUnaryFn_log", "OpaqueUnaryFn_log2",
    "OpaqueUnaryFn_sin", "OpaqueUnaryFn_sinh", "OpaqueUnaryFn_sqrt", "OpaqueUnaryFn_tan",
    "OpaqueUnaryFn_tanh", "PowByNatural", "PythonMod", "RShift", "RoundDecimal", "RoundToInt", "ToFloat",
    "TruncToFloat", "TruncToInt", "Where",
))  # fmt: skip
"""Functions that torch adds to sympy, in `torch/utils/_sympy/functions.py`."""
CONSTANTS = frozenset(("oo", "int_oo"))


@dataclass(frozen=True, slots=True)
class Symbol:
    """A symbol. `assumptions` is None if the text contains only the symbol's name."""

    name: str
    assumptions: tuple[tuple[str, bool], ...] | None = None


@dataclass(frozen=True, slots=True)
class Call:
    """A function with its arguments, such as `FloorDiv`; or an infinity, which has no arguments."""

    function: str
    arguments: tuple[Shape, ...] = ()


Shape: TypeAlias = "bool | int | float | Fraction | Symbol | Call"


def read_shape(text: str) -> Shape:
    """Return the tree of an expression that torch wrote.

    Raises:
        DocumentError: The text has another form than torch's, or a function or number that is not allowed.
    """
    try:
        return _tree(parse_expression(text))
    except RecursionError:
        raise DocumentError("an expression that is nested too deeply") from None


def is_truth(shape: Shape) -> bool:
    """Return whether the value of an expression is a boolean."""
    return shape.function in TRUTHS if isinstance(shape, Call) else isinstance(shape, bool)


def _tree(node: ast.expr) -> Shape:
    match node:
        case ast.Constant(bool() as value):
            return value
        case ast.Constant(int() | float() as value):
            return _number(value)
        case ast.Name("true" | "false" as name):
            return name == "true"
        case ast.Name(name):
            return Call(name) if name in CONSTANTS else Symbol(_symbol_name(name))
        case ast.Call(ast.Name(function), args) if function in _LITERALS:
            return _literal(function, args, node.keywords)
        case ast.Call(ast.Name(function), args, []):
            return _call(function, *args)
        case ast.UnaryOp(ast.USub(), ast.Constant(int() | float() as value)) if not isinstance(value, bool):
            return _number(-value)
        case ast.UnaryOp(ast.USub(), operand):
            return _call("Mul", ast.Constant(-1), operand)
        case ast.UnaryOp(ast.Not() | ast.Invert(), operand):
            return _call("Not", operand)
        case ast.UnaryOp(ast.UAdd(), operand):
            return _tree(operand)
        case ast.BinOp(left, ast.Sub(), right):
            return _call("Add", left, ast.UnaryOp(ast.USub(), right))
        case ast.BinOp(left, sign, right) if type(sign) in _OPERATORS:
            return _call(_OPERATORS[type(sign)], left, right)
        case ast.Compare(left, [sign], [right]) if type(sign) in _OPERATORS:
            return _call(_OPERATORS[type(sign)], left, right)
        case ast.BoolOp(sign, values):
            return _call(_OPERATORS[type(sign)], *values)
    raise DocumentError("not a shape expression")


def _call(function: str, *args: ast.expr) -> Call:
    if function not in SYMPY_FUNCTIONS and function not in TORCH_FUNCTIONS:
        raise DocumentError(f"{function[:80]!r} is not a supported function in shape expressions")
    if len(args) > MAX_ARGUMENTS:
        raise DocumentError(f"{function} with {len(args)} arguments; the limit is {MAX_ARGUMENTS}")
    parts = tuple(map(_tree, args))
    if function in ("Add", "Mul"):  # `a + b + c` is one sum.
        parts = tuple(chain.from_iterable(_operands(function, part) for part in parts))
    return Call(function, parts)


def _operands(function: str, part: Shape) -> tuple[Shape, ...]:
    return part.arguments if isinstance(part, Call) and part.function == function else (part,)


def _literal(kind: str, args: list[ast.expr], options: list[ast.keyword]) -> Shape:
    match kind, args:
        case "Symbol", [ast.Constant(str(name))]:
            return Symbol(_symbol_name(name), tuple(map(_assumption, options)))
        case "Float", [ast.Constant(str() | int() | float() as value)] if all(
            option.arg in ("precision", "dps") for option in options
        ):
            return _decimal(value)
        case "Integer", [value] if not options:
            return _number(_signed(value))
        case "Rational", [over, under] if not options:
            return _rational(_signed(over), _signed(under))
    raise DocumentError(f"not a valid {kind} in a shape expression")


def _symbol_name(name: str) -> str:
    if not _SYMBOL.fullmatch(name):
        raise DocumentError(f"{name[:80]!r} is not a symbol name")
    return name


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


def _number(value: float) -> int | float:
    return _limited(value) if isinstance(value, int) else _decimal(value)


def _limited(value: int) -> int:
    if value.bit_length() > MAX_BITS:
        raise DocumentError("a shape expression contains a number that is too large for a size")
    return value


def _rational(over: float, under: float) -> Fraction:
    if not isinstance(over, int) or not isinstance(under, int):
        raise DocumentError("not a valid Rational in a shape expression")
    if under == 0:
        raise DocumentError("a division by zero in a shape expression")
    return Fraction(_limited(over), _limited(under))


def _decimal(value: float | str) -> float:
    if isinstance(value, str) and (len(value) > 400 or not _DECIMAL.fullmatch(value)):
        raise DocumentError("not a valid number in a shape expression")
    if not math.isfinite(number := float(value)):
        raise DocumentError("a shape expression contains a number that is too large for a size")
    return number


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
