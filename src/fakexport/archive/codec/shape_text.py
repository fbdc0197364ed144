"""Print a shape expression as sympy prints it: `2*s0 + 1`, without importing sympy.

torch writes an expression with its terms and factors in sympy's order, so this module does not sort.
Source: `sympy/printing/str.py` and `precedence.py` of sympy 1.14.
"""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from itertools import takewhile
from math import prod
from typing import Any, TypeGuard

from .shape_tree import RELATIONS, Call, Shape, Symbol

_ADD, _MUL, _POW, _FUNCTION, _ATOM = 40, 50, 60, 70, 1000
_RELATION, _AND = 35, 38
_LEVELS = {
    **dict.fromkeys(("oo", "int_oo", "Max", "Min", "ITE", "ExprCondPair"), _ATOM),
    **dict.fromkeys(RELATIONS, _RELATION),
    **dict.fromkeys(("Equality", "Eq", "Unequality", "Ne", "PowByNatural"), _MUL),
    **dict.fromkeys(("CleanDiv", "FloorDiv", "FloatTrueDiv", "IntTrueDiv", "Mod"), _RELATION),
    **dict.fromkeys(("ModularIndexing", "PythonMod", "Where"), _RELATION),
    "Identity": 10, "Xor": 10, "Or": 20, "And": 30, "Not": 100, "Add": _ADD, "Pow": _POW, "FloatPow": _POW,
    "BitwiseFn_bitwise_or": 36, "BitwiseFn_bitwise_xor": 37, "BitwiseFn_bitwise_and": 38,
}  # fmt: skip
_RELATION_NAMES = {"==": "Eq", "!=": "Ne"}
_CONNECTED = {"And": (" & ", _AND), "Or": (" | ", 36), "Xor": (" ^ ", 37)}


def shape_text(shape: Shape) -> str:
    """Return the text that sympy prints for an expression that torch wrote."""
    match shape:
        case float():
            digits, _, exponent = f"{shape:.15g}".partition("e")
            return (digits if "." in digits else f"{digits}.0") + (f"e{int(exponent):+d}" if exponent else "")
        case Symbol(name):
            return name
        case Call(function, arguments):
            return _call_text(function, arguments)
    return str(shape)


def _call_text(function: str, arguments: Sequence[Shape]) -> str:
    if not arguments:
        return function
    match function:
        case "Add":
            return _sum(arguments)
        case "Mul":
            return _product(arguments)
        case "Pow" if len(arguments) == 2:
            return _power(*arguments)
        case "FloorDiv" | "CleanDiv" if len(arguments) == 2:
            base, divisor = (_inner(part, _ATOM - 1) for part in arguments)
            return f"({base}//{divisor})"
        case "And" | "Or" | "Xor":
            sign, level = _CONNECTED[function]
            return sign.join(_inner(part, level) for part in arguments)
        case "Not":
            return f"~{_inner(arguments[0], _LEVELS['Not'])}"
        case _ if function in RELATIONS and len(arguments) == 2:
            return _relation(RELATIONS[function], *arguments)
    name = "" if function in ("ExprCondPair", "Identity") else function
    return f"{name}({', '.join(map(shape_text, arguments))})"


def _inner(shape: Shape, level: int) -> str:
    """Return the text of a part, in parentheses unless it binds more tightly than `level`."""
    return f"({shape_text(shape)})" if _level(shape) <= level else shape_text(shape)


def _level(shape: Shape) -> int:
    match shape:
        case Symbol() | bool():
            return _ATOM
        case Call("Mul", arguments):
            is_loose = any(isinstance(part, Call) and _is_loose_function(part) for part in arguments)
            return _ADD if _is_negative(arguments[0]) and not is_loose else _MUL
        case Call(function):
            return _LEVELS.get(function, _FUNCTION)
    if _is_negative(shape):
        return _ADD
    return _MUL if isinstance(shape, Fraction) else _ATOM


def _is_loose_function(part: Call) -> bool:
    """Return whether a part is a function of torch that binds less tightly than a product."""
    return part.function not in ("Add", "And", "Or", *RELATIONS) and _LEVELS.get(part.function, _ATOM) < _MUL


def _is_number(shape: Shape) -> TypeGuard[int | float | Fraction]:
    return isinstance(shape, (int, float, Fraction))


def _is_negative(shape: Shape) -> bool:
    return _is_number(shape) and shape < 0


def _sum(terms: Sequence[Shape]) -> str:
    text = ""
    for term in terms:
        shown = shape_text(term)
        is_sum = isinstance(term, Call) and term.function == "Add"
        is_negative = shown.startswith("-") and not is_sum
        shown = shown.removeprefix("-") if is_negative else shown
        if is_sum or _level(term) < _ADD:
            shown = f"({shown})"
        if text:
            text += f" {'-' if is_negative else '+'} {shown}"
        else:
            text = f"-{shown}" if is_negative else shown
    return text


def _product(factors: Sequence[Shape]) -> str:
    level = _level(Call("Mul", tuple(factors)))
    numbers = list(takewhile(_is_number, factors))
    coefficient: Any = prod(numbers)
    sign = "-" if coefficient < 0 else ""
    coefficient = abs(coefficient)
    over: list[str] = []
    under: list[str] = []
    if isinstance(coefficient, Fraction):
        over += [str(coefficient.numerator)] * (coefficient.numerator != 1)
        under += [str(coefficient.denominator)] * (coefficient.denominator != 1)
    elif coefficient != 1 or isinstance(coefficient, float):
        over.append(shape_text(coefficient))
    for factor in factors[len(numbers) :]:
        match factor:
            case Call("Pow", (base, exponent)) if _is_negative(exponent):
                positive = base if exponent == -1 else Call("Pow", (base, _negated(exponent)))
                under.append(_inner(positive, level))
            case _:
                over.append(_inner(factor, level))
    above = sign + ("*".join(over) or "1")
    if not under:
        return above
    return f"{above}/{under[0]}" if len(under) == 1 else f"{above}/({'*'.join(under)})"


def _negated(number: Shape) -> Shape:
    return -number if _is_number(number) else number


def _power(base: Shape, exponent: Shape) -> str:
    if exponent == Fraction(1, 2):
        return f"sqrt({shape_text(base)})"
    if exponent == Fraction(-1, 2):
        return f"1/sqrt({shape_text(base)})"
    if exponent == -1:
        return f"1/{_inner(base, _POW)}"
    return f"{_inner(base, _POW)}**{_inner(exponent, _POW)}"


def _relation(sign: str, left: Shape, right: Shape) -> str:
    if sign in _RELATION_NAMES:
        return f"{_RELATION_NAMES[sign]}({shape_text(left)}, {shape_text(right)})"
    return f"{_inner(left, _RELATION)} {sign} {_inner(right, _RELATION)}"
