"""Guards as expression trees. Leaves are numbers or input properties; inner nodes are operations.

Operations come from a fixed table, and text is never evaluated. The C++ program has the same table, in
`deploy/cpp_project/template/src/condition.cpp`.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

from fakexport.error import InvalidValue

Kind: TypeAlias = Literal[
    "size", "stride", "offset", "value", "storage", "storage_bytes",
    "contiguous", "channels_last", "channels_last_3d",
    "requires_grad", "is_leaf", "is_view", "is_inference", "is_conj", "is_neg",
]  # fmt: skip
"""A property of an input: size or stride of a dimension, storage offset, value of a number, address or byte
size of the storage, or a boolean property such as a memory format.
"""


@dataclass(frozen=True, slots=True)
class Question:
    """A property of an input, such as a size. Its value depends on the call.

    Args:
        input: Name of the input in the program.
        kind: The property of the input.
        dim: Dimension of a size or a stride.
    """

    input: str
    kind: Kind
    dim: int = 0

    def __str__(self) -> str:
        return _QUESTIONS[self.kind].format(self.input, self.dim)


@dataclass(frozen=True, slots=True)
class Operation:
    """An operation from the table, such as `%`, `and` or `trunc`, with its operands."""

    sign: str
    operands: tuple[Expression, ...]


Expression: TypeAlias = "int | float | bool | Question | Operation"

_QUESTIONS = {
    "size": "{0}.shape[{1}]",
    "stride": "{0}.stride({1})",
    "offset": "{0}.storage_offset()",
    "value": "{0}",
    "storage": "{0}.untyped_storage()._cdata",
    "storage_bytes": "{0}.untyped_storage().nbytes()",
    "contiguous": "{0}.is_contiguous()",
    "channels_last": "{0}.is_contiguous(memory_format=torch.channels_last)",
    "channels_last_3d": "{0}.is_contiguous(memory_format=torch.channels_last_3d)",
    "requires_grad": "{0}.requires_grad",
    "is_leaf": "{0}.is_leaf",
    "is_view": "{0}._is_view()",
    "is_inference": "{0}.is_inference()",
    "is_conj": "{0}.is_conj()",
    "is_neg": "{0}.is_neg()",
}


def _power(base: Any, exponent: Any) -> Any:
    """Return a power. Reject complex results, and exponents that would take too long to compute."""
    if abs(exponent) > 64 or (base < 0 and exponent != int(exponent)):
        raise InvalidValue("a power with a complex result or an exponent outside of -64..64")
    return base**exponent


def _shift(value: Any, places: Any) -> Any:
    if not 0 <= places < 64:
        raise InvalidValue("a shift by a negative number or by more than 63")
    return value << places


_CHAINED: Mapping[str, Callable[..., Any]] = {"+": operator.add, "*": operator.mul}
_BINARY: Mapping[str, Callable[..., Any]] = {
    "-": operator.sub, "/": operator.truediv, "//": operator.floordiv, "%": operator.mod, "**": _power,
    "<": operator.lt, "<=": operator.le, ">": operator.gt, ">=": operator.ge,
    "==": operator.eq, "!=": operator.ne,
    "&": operator.and_, "|": operator.or_, "^": operator.xor, "<<": _shift, ">>": operator.rshift,
}  # fmt: skip
_UNARY: Mapping[str, Callable[..., Any]] = {
    "neg": operator.neg, "not": operator.not_, "abs": abs, "round": round, "float": float, "int": int,
    "floor": math.floor, "ceil": math.ceil, "trunc": math.trunc, "sqrt": math.sqrt, "exp": math.exp,
    "log": math.log, "log2": math.log2,
    "sin": math.sin, "cos": math.cos, "tan": math.tan, "asin": math.asin, "acos": math.acos,
    "atan": math.atan, "sinh": math.sinh, "cosh": math.cosh, "tanh": math.tanh,
}  # fmt: skip

ARITY: Mapping[str, tuple[int, int]] = {
    **dict.fromkeys(_CHAINED, (2, 10_000)),
    **dict.fromkeys(("and", "or", "min", "max"), (2, 10_000)),
    **dict.fromkeys(_BINARY, (2, 2)),
    **dict.fromkeys(_UNARY, (1, 1)),
    "if": (3, 3),
}
"""Minimum and maximum number of operands of each operation."""


def evaluated(expression: Expression, answer: Callable[[Question], int | float | bool]) -> Any:
    """Evaluate an expression with Python's semantics. `answer` returns the value of an input property.

    Raises:
        ArithmeticError, ValueError, TypeError: the expression has no value, for example because of a division
            by zero.
    """
    match expression:
        case Question():
            return answer(expression)
        case Operation("and" | "or", operands):
            return _decided(expression.sign == "or", operands, answer)
        case Operation("if", (condition, then, otherwise)):
            return evaluated(then if evaluated(condition, answer) else otherwise, answer)
        case Operation(sign, operands):
            return _applied(sign, [evaluated(operand, answer) for operand in operands])
    return expression


def _decided(
    is_or: bool, operands: Sequence[Expression], answer: Callable[[Question], int | float | bool]
) -> Any:
    """Evaluate operands like Python's `and` or `or`: return the first one that decides, or else the last."""
    value: Any = None
    for operand in operands:
        value = evaluated(operand, answer)
        if bool(value) is is_or:
            break
    return value


def _applied(sign: str, values: Sequence[Any]) -> Any:
    if sign in ("min", "max"):
        return min(values) if sign == "min" else max(values)
    if sign in _CHAINED:
        total = values[0]
        for value in values[1:]:
            total = _CHAINED[sign](total, value)
        return total
    return (_UNARY if len(values) == 1 else _BINARY)[sign](*values)


def questions_in(expression: Expression) -> Iterator[Question]:
    """Yield the input properties in an expression from left to right, including repetitions."""
    if isinstance(expression, Question):
        yield expression
    elif isinstance(expression, Operation):
        for operand in expression.operands:
            yield from questions_in(operand)


_LEVELS = {"if": 0, "or": 1, "and": 2, "not": 3} | dict.fromkeys(("<", "<=", ">", ">=", "==", "!="), 4)
_LEVELS |= {"|": 5, "^": 6, "&": 7, "<<": 8, ">>": 8, "+": 9, "-": 9, "*": 10, "/": 10, "//": 10, "%": 10}
_LEVELS |= {"neg": 11, "**": 12}
_IN_MATH = frozenset(_UNARY) - {"neg", "not", "abs", "round", "float", "int", "trunc"}


def expression_text(expression: Expression, names: Mapping[str, str] | None = None) -> str:
    """Return an expression as Python source: `x.shape[1] % 2 == 0`."""
    return _text(expression, names or {}, 0)


def _text(expression: Expression, names: Mapping[str, str], level: int) -> str:
    match expression:
        case Question(name, kind, dim):
            return str(Question(names.get(name, name), kind, dim))
        case Operation(sign, operands):
            own = _LEVELS.get(sign, 99)
            text = _operation_text(sign, operands, names, own)
            return f"({text})" if own < level else text
    text = repr(expression)
    return f"({text})" if text.startswith("-") and level > _LEVELS["neg"] else text


def _operation_text(sign: str, operands: Sequence[Expression], names: Mapping[str, str], own: int) -> str:
    if sign not in _LEVELS:
        name = {"trunc": "int"}.get(sign, f"math.{sign}" if sign in _IN_MATH else sign)
        return f"{name}({', '.join(_text(operand, names, 0) for operand in operands)})"
    # If an operator is not associative, operands with the same precedence are parenthesized.
    texts = [
        _text(operand, names, own + (index > 0 or own in (0, 4))) for index, operand in enumerate(operands)
    ]
    if sign == "if":
        return f"{texts[1]} if {texts[0]} else {texts[2]}"
    if len(operands) == 1:
        return f"{'-' if sign == 'neg' else 'not '}{texts[0]}"
    if sign == "**":
        texts[0] = _text(operands[0], names, own + 1)
    return f" {sign} ".join(texts)
