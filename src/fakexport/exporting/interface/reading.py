"""Parse the text of a torch guard into an expression tree, without evaluating it.

A guard is Python source, such as `L['x'].size()[1] % 2 == 0`. Syntax that guards do not need is rejected.
"""

from __future__ import annotations

import ast
from collections.abc import Mapping, Sequence
from typing import Any

from fakexport.error import FakexportError, InvalidValue

from .condition import MAX_DEPTH, Condition, depth_of
from .expression import Expression, Kind, Operation, Question, evaluated, questions_in
from .input_leaves import InputLeaf, Path, leaf_at

WHILE_EXPORTING = " or torch.compiler.is_exporting()"
"""Appended to guards that must not fail when `run_decompositions` traces the program again.

`run_decompositions` passes inputs of different types: a SymInt instead of an int, and 1 instead of `True`.
"""

_MAX_LENGTH = 20_000
_LARGEST = 2**63 - 1
_BINARY: Mapping[type[ast.AST], str] = {
    ast.Add: "+", ast.Sub: "-", ast.Mult: "*", ast.Div: "/", ast.FloorDiv: "//", ast.Mod: "%", ast.Pow: "**",
    ast.BitAnd: "&", ast.BitOr: "|", ast.BitXor: "^", ast.LShift: "<<", ast.RShift: ">>",
    ast.Lt: "<", ast.LtE: "<=", ast.Gt: ">", ast.GtE: ">=", ast.Eq: "==", ast.NotEq: "!=",
    ast.Is: "==", ast.IsNot: "!=",
}  # fmt: skip
_FUNCTIONS = {
    "sym_float": "float", "sym_int": "int", "_sym_sqrt": "sqrt", "sym_max": "max", "sym_min": "min",
    "sym_not": "not", "sym_ite": "if",
}  # fmt: skip
_IN_MATH = frozenset(
    ("acos", "asin", "atan", "ceil", "cos", "cosh", "exp", "floor", "log", "log2", "sin", "sinh", "sqrt")
) | {"tan", "tanh", "trunc"}
_PLAIN = frozenset(("max", "min", "abs", "round", "float", "int"))
_METHODS: Mapping[str, Kind] = {"size": "size", "stride": "stride"}
_FLAGS: Mapping[str, Kind] = {"requires_grad": "requires_grad", "is_leaf": "is_leaf"}
_ASKED_BY_CALL: Mapping[str, Kind] = {
    "storage_offset": "offset", "is_contiguous": "contiguous", "_is_view": "is_view",
    "is_inference": "is_inference", "is_conj": "is_conj", "is_neg": "is_neg",
}  # fmt: skip
_FORMATS: Mapping[str, Kind] = {"channels_last": "channels_last", "channels_last_3d": "channels_last_3d"}


class UnreadableCondition(FakexportError, ValueError):
    """A guard on inputs uses syntax that fakexport cannot store and check."""

    def __init__(self, text: str, reason: str) -> None:
        shown = text if len(text) <= 200 else f"{text[:200]}..."
        super().__init__(f"fakexport cannot check the condition `{shown}` on the inputs: {reason}")


class _Unreadable(Exception):
    """A guard has an unsupported part, which the message describes."""


def read_condition(text: str, leaves: Sequence[InputLeaf]) -> Condition | None:
    """Parse a guard. Return None if no call can violate it.

    Raises:
        UnreadableCondition: the text is not a guard, or reads something other than supported properties of
            the inputs.
    """
    text, _, place = text.partition(" and 'asked at ")
    text = text.replace(WHILE_EXPORTING, "")
    expression = read_expression(text, leaves)
    return Condition(expression, place.rstrip("'")) if any(questions_in(expression)) else None


def read_expression(
    text: str, leaves: Sequence[InputLeaf], symbols: Mapping[str, Expression] | None = None
) -> Expression:
    """Parse text into an expression tree, and replace the names in `symbols`.

    Raises:
        UnreadableCondition: as for `read_condition`.
    """
    try:
        if len(text) > _MAX_LENGTH:
            raise _Unreadable(f"it has more than {_MAX_LENGTH:,} characters")
        found = _Reading(leaves, symbols or {}).expression(ast.parse(text.strip(), mode="eval").body)
        if depth_of(found) > MAX_DEPTH:
            raise _Unreadable(f"it is more than {MAX_DEPTH} levels deep")
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise UnreadableCondition(text, "it is not valid Python syntax") from error
    except _Unreadable as error:
        raise UnreadableCondition(text, str(error)) from None
    return found


class _Reading:
    def __init__(self, leaves: Sequence[InputLeaf], symbols: Mapping[str, Expression]) -> None:
        self._leaves = leaves
        self._symbols = symbols

    def expression(self, node: ast.AST) -> Expression:
        match node:
            case ast.Constant(bool() | int() | float() as value):
                return _number(value)
            case ast.Name(name) if name in self._symbols:
                return self._symbols[name]
            case ast.UnaryOp(ast.UAdd(), operand):
                return self.expression(operand)
            case ast.UnaryOp(ast.USub(), operand):
                return _negative(self.expression(operand))
            case ast.UnaryOp(ast.Not(), operand):
                return Operation("not", (self.expression(operand),))
            case ast.BinOp(left, sign, right) if type(sign) in _BINARY:
                return _chained(_BINARY[type(sign)], self.expression(left), self.expression(right))
            case ast.BoolOp(sign, values):
                parts = tuple(map(self.expression, values))
                return Operation("and" if isinstance(sign, ast.And) else "or", parts)
            case ast.Compare(left, signs, others):
                return self._comparison(left, signs, others)
            case ast.IfExp(test, body, other):
                return Operation("if", tuple(map(self.expression, (test, body, other))))
            case ast.Attribute(ast.Name("math"), "inf"):
                return _LARGEST  # No size is larger.
            case ast.Call(function, args, []):
                return self._call(function, args)
        return self._question(node)

    def _comparison(self, left: ast.AST, signs: list[ast.cmpop], others: list[ast.expr]) -> Expression:
        """Convert `a < b < c` to `a < b and b < c`."""
        if not all(type(sign) in _BINARY for sign in signs):
            raise _Unreadable("it compares values that are not numbers")
        if any(isinstance(node, ast.Constant) and node.value is None for node in others):
            return self._absence(left, signs, others)
        if self._is_kept_by_name(left):
            return True
        operands = [self.expression(node) for node in (left, *others)]
        pairs = zip(signs, operands, operands[1:], strict=False)
        parts = tuple(Operation(_BINARY[type(sign)], (one, other)) for sign, one, other in pairs)
        return parts[0] if len(parts) == 1 else Operation("and", parts)

    def _absence(self, left: ast.AST, signs: list[ast.cmpop], others: list[ast.expr]) -> Expression:
        """Convert a guard that an input is None to True. The input must have been None in the trace.

        Calls that pass inputs by name always satisfy this guard.
        """
        leaf, rest = self._leaf(left)
        is_equal = len(others) == 1 and isinstance(signs[0], (ast.Eq, ast.Is))
        if rest or not is_equal or leaf.constant is not None:
            raise _Unreadable("it compares a value with None")
        return True

    def _is_kept_by_name(self, asked: ast.AST) -> bool:
        """Return whether calls that pass inputs by name always satisfy a guard, or other code checks it.

        These are guards on dtype, rank, layout, device, a constant's type or sign, and distinct tensors.
        """
        match asked:
            case (
                ast.Attribute(owner, "dtype" | "ndim" | "layout" | "_name_")
                | ast.Attribute(ast.Attribute(owner, "device"), "type")
                | ast.Call(ast.Name("type" | "str"), [owner], [])
                | ast.Attribute(ast.Call(ast.Name("type"), [owner], []), "__module__" | "__qualname__")
            ):
                self._leaf(owner)
                return True
            case ast.Call(ast.Name("len"), [ast.Set()], []) | ast.Call(
                ast.Attribute(attr="is_inference_mode_enabled"), [], []
            ):
                return True
        return False

    def _call(self, function: ast.AST, args: list[ast.expr]) -> Expression:
        match function:
            case ast.Name(name) if name in _PLAIN:
                sign = name
            case ast.Attribute(ast.Name("math"), name) if name in _IN_MATH:
                sign = name
            case ast.Attribute(ast.Name("torch"), name) if name in _FUNCTIONS:
                sign = _FUNCTIONS[name]
            case ast.Attribute(ast.Call(ast.Attribute(owner, "untyped_storage"), [], []), "nbytes") if (
                not args
            ):
                return self._of_tensor(owner, "storage_bytes", 0)
            case ast.Attribute(owner, name) if name in _ASKED_BY_CALL and not args:
                return self._of_tensor(owner, _ASKED_BY_CALL[name], 0)
            case ast.Attribute(owner, "item") if not args:
                return self._of_leaf(*self._leaf(owner))
            case _:
                raise _Unreadable("it calls an unsupported function")
        if sign == "round" and len(args) != 1:
            raise _Unreadable("it rounds a number to decimal places")
        return Operation(sign, tuple(map(self.expression, args)))

    def _question(self, node: ast.AST) -> Expression:
        """Return the input property that a guard reads, such as `L['x'].size()[1]` or `L['n']`."""
        match node:
            case ast.Attribute(ast.Call(ast.Attribute(owner, "untyped_storage"), [], []), "_cdata"):
                return self._of_tensor(owner, "storage", 0)
            case ast.Attribute(owner, name) if name in _FLAGS:
                return self._of_tensor(owner, _FLAGS[name], 0)
            case ast.Call(
                ast.Attribute(owner, "is_contiguous"),
                [],
                [ast.keyword("memory_format", ast.Attribute(attr=name))],
            ) if name in _FORMATS:
                return self._of_tensor(owner, _FORMATS[name], 0)
            case ast.Subscript(ast.Call(ast.Attribute(owner, attr), [], []), ast.Constant(int(dim))) if (
                attr in _METHODS
            ):
                return self._of_tensor(owner, _METHODS[attr], dim)
            case ast.Subscript(ast.Attribute(owner, "shape"), ast.Constant(int(dim))):
                return self._of_tensor(owner, "size", dim)
            case ast.Subscript():
                return self._of_leaf(*self._leaf(node))
        raise _Unreadable("it contains unsupported syntax")

    def _of_tensor(self, owner: ast.AST, kind: Kind, dim: int) -> Expression:
        leaf, rest = self._leaf(owner)
        if rest or leaf.rank is None or (kind in ("size", "stride") and not 0 <= dim < leaf.rank):
            raise _Unreadable(f"the input `{leaf.name}` has no such {kind}")
        return Question(leaf.name, kind, dim)

    def _of_leaf(self, leaf: InputLeaf, rest: Path) -> Expression:
        if rest:
            raise _Unreadable(f"it reads an attribute or an element of the input `{leaf.name}`")
        if leaf.constant is not ...:
            if type(leaf.constant) not in (int, float, bool):
                raise _Unreadable(f"the input `{leaf.name}` is not a number")
            return _number(leaf.constant)
        return Question(leaf.name, "value")

    def _leaf(self, node: ast.AST) -> tuple[InputLeaf, Path]:
        path = _path(node)
        found = leaf_at(self._leaves, path)
        if found is None:
            raise _Unreadable(f"the program has no input `{'.'.join(map(str, path))[:80]}`")
        return found


def _path(node: ast.AST) -> Path:
    match node:
        case ast.Subscript(ast.Name("L"), ast.Constant(str(name))):
            return (name,)
        case ast.Subscript(owner, ast.Constant(int() | str() as key)):
            return (*_path(owner), key)
        case ast.Attribute(owner, name):
            return (*_path(owner), name)
    raise _Unreadable("it contains unsupported syntax")


def _number(value: Any) -> Expression:
    if not isinstance(value, bool) and not abs(value) <= _LARGEST:
        raise _Unreadable("it contains a number above 2**63 - 1 or below -(2**63 - 1)")
    return value if isinstance(value, (bool, int)) else float(value)


def _negative(operand: Expression) -> Expression:
    if type(operand) in (int, float):
        return -operand  # type: ignore[operator]
    return Operation("neg", (operand,))


def _chained(sign: str, left: Expression, right: Expression) -> Expression:
    """Combine operands: `a + b + c` becomes one operation, because the depth of a tree is limited."""
    if sign == "**" and (type(right) not in (int, float) or not abs(evaluated(right, _no_answer)) <= 64):
        raise _Unreadable("it contains a large power")
    if isinstance(left, Operation) and left.sign == sign and sign in ("+", "*"):
        return Operation(sign, (*left.operands, right))
    return Operation(sign, (left, right))


def _no_answer(question: Question) -> int:
    raise InvalidValue(f"{question} is not a number")
