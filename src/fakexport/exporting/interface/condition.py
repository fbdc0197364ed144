"""One condition on the inputs of a call, and its serialization."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, cast, get_args

from fakexport.files.documents import DocumentError, field, integer, items, mapping, one_of, sequence, text

from .expression import ARITY, Expression, Kind, Operation, Question, evaluated, expression_text, questions_in

MAX_DEPTH = 52
"""Maximum depth of a condition: the C++ program reads JSON of at most 64 levels."""

_MAX_CONDITIONS = 100_000
_KINDS: tuple[Kind, ...] = get_args(Kind)
_LARGEST = 2**63 - 1


@dataclass(frozen=True, slots=True)
class Condition:
    """A condition that the inputs of a call must satisfy. If they do not, the program's results are wrong.

    Args:
        check: An expression tree whose value is true or false.
        asked_at: The line of the model that imposed the condition, such as `model.py:12`, or "" if it is
            unknown.

    Example:
        >>> even = Condition(Operation("==", (Operation("%", (Question("x", "size", 1), 2)), 0)))
        >>> str(even), even.holds(lambda question: 17)
        ('x.shape[1] % 2 == 0', False)
    """

    check: Expression
    asked_at: str = ""

    def __str__(self) -> str:
        return expression_text(self.check)

    @property
    def reason(self) -> str:
        """The condition with the line that imposed it, for an error message."""
        return f"{self} (because of {self.asked_at})" if self.asked_at else str(self)

    def renamed(self, names: Mapping[str, str]) -> Condition:
        """Return the condition with new names for inputs. Names that are not in the mapping are unchanged."""
        return replace(self, check=_renamed(self.check, names))

    @property
    def questions(self) -> tuple[Question, ...]:
        """The input properties that the condition depends on, each once, from left to right."""
        return tuple(dict.fromkeys(questions_in(self.check)))

    def holds(self, answer: Callable[[Question], int | float | bool]) -> bool:
        """Return whether a call satisfies the condition. `answer` returns the value of an input property.

        A condition that cannot be computed, for example because of a division by zero, is not satisfied.
        """
        try:
            return bool(evaluated(self.check, answer))
        except (ArithmeticError, ValueError, TypeError):
            return False


def _renamed(expression: Expression, names: Mapping[str, str]) -> Expression:
    match expression:
        case Question(name):
            return replace(expression, input=names.get(name, name))
        case Operation(sign, operands):
            return Operation(sign, tuple(_renamed(operand, names) for operand in operands))
    return expression


def conditions_to_json(conditions: tuple[Condition, ...]) -> list[dict[str, Any]]:
    """Convert conditions to plain data that `conditions_from_json` and the C++ program can read."""
    return [
        {"text": condition.reason, "check": _to_json(condition.check)}
        | ({"asked_at": condition.asked_at} if condition.asked_at else {})
        for condition in conditions
    ]


def conditions_from_json(value: Any, ranks: Mapping[str, int]) -> tuple[Condition, ...]:
    """Parse the result of `conditions_to_json` from an untrusted file.

    Raises:
        DocumentError: the data is invalid, or refers to an input or dimension that does not exist.
    """
    return tuple(items(value, lambda found: _condition(found, ranks), _MAX_CONDITIONS))


def depth_of(expression: Expression) -> int:
    """Return the depth of nested operations in an expression."""
    if not isinstance(expression, Operation):
        return 0
    return 1 + max(map(depth_of, expression.operands))


def _condition(value: Any, ranks: Mapping[str, int]) -> Condition:
    owner = mapping(value)
    field(owner, "text", text)
    check = field(owner, "check", lambda found: _from_json(found, ranks, 0))
    return Condition(check, field(owner, "asked_at", text, ""))


def _to_json(expression: Expression) -> Any:
    match expression:
        case Question(name, kind, dim):
            return {"input": name, "ask": kind, "dim": dim}
        case Operation(sign, operands):
            return [sign, *map(_to_json, operands)]
    return expression


def _from_json(value: Any, ranks: Mapping[str, int], depth: int) -> Expression:
    if depth > MAX_DEPTH:
        raise DocumentError(f"a condition more than {MAX_DEPTH} levels deep")
    if isinstance(value, dict):
        return _question(value, ranks)
    if isinstance(value, list):
        return _operation(sequence(value, 10_001), ranks, depth)
    if type(value) not in (int, float, bool) or not abs(value) <= _LARGEST:
        raise DocumentError("expected a number in a condition")
    return cast("int | float | bool", value)


def _question(owner: dict[str, Any], ranks: Mapping[str, int]) -> Question:
    name = field(owner, "input", one_of(ranks, "input of the program"))
    kind = field(owner, "ask", one_of(_KINDS, "property of an input"))
    highest = ranks[name] - 1 if kind in ("size", "stride") else 0
    return Question(name, cast("Kind", kind), field(owner, "dim", lambda dim: integer(dim, 0, highest)))


def _operation(parts: list[Any], ranks: Mapping[str, int], depth: int) -> Operation:
    sign = one_of(ARITY, "operation of a condition")(parts[0] if parts else None)
    fewest, most = ARITY[sign]
    if not fewest <= len(parts) - 1 <= most:
        raise DocumentError(f"the operation {sign!r} with {len(parts) - 1} operands")
    return Operation(sign, tuple(_from_json(part, ranks, depth + 1) for part in parts[1:]))
