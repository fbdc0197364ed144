"""What a program demands of its inputs, as conditions of the written file."""

from __future__ import annotations

import ast
from collections.abc import Mapping
from typing import Any

__all__ = ["guard_text"]

_QUESTIONS = frozenset(("size", "stride", "storage_offset", "item"))
_FUNCTIONS = frozenset(("max", "min", "abs", "round"))
_PLAIN = (
    *(ast.Expression, ast.BoolOp, ast.Compare, ast.BinOp, ast.UnaryOp, ast.Load),
    *(ast.boolop, ast.operator, ast.unaryop, ast.cmpop),
)


def guard_text(guard: str, names: Mapping[str, str]) -> str | None:
    """A condition as torch prints it (`L['x'].size()[0] >= 2`) in the words of the file (`x.shape[0] >= 2`).

    Args:
        guard: The condition; not to be trusted.
        names: Name in the file of each argument.
    Returns:
        Text that reads sizes and numbers of arguments, compares and calculates; None where the condition does
        anything else.
    """
    try:
        tree = ast.parse(guard, mode="eval")
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None
    try:
        return ast.unparse(_Renaming(names).visit(tree))
    except (_OtherGuard, RecursionError):
        return None


class _OtherGuard(Exception):
    """The condition does more than compare sizes."""


class _Renaming(ast.NodeTransformer):
    def __init__(self, names: Mapping[str, str]) -> None:
        self._names = names

    def visit(self, node: ast.AST) -> Any:
        match node:
            case ast.Subscript(value=ast.Name(id="L"), slice=ast.Constant(value=str(name))):
                if name not in self._names:
                    raise _OtherGuard
                return ast.Name(id=self._names[name], ctx=ast.Load())
            case ast.Subscript(
                value=ast.Call(func=ast.Attribute(attr="size", value=owner), args=[], keywords=[]),
                slice=ast.Constant(value=int()),
            ):
                shape = ast.Attribute(value=self.visit(owner), attr="shape", ctx=ast.Load())
                return ast.Subscript(value=shape, slice=node.slice, ctx=ast.Load())
            case ast.Call(func=ast.Attribute(attr=attr, value=owner), args=[], keywords=[]) if (
                attr in _QUESTIONS
            ):
                method = ast.Attribute(value=self.visit(owner), attr=attr, ctx=ast.Load())
                return ast.Call(func=method, args=[], keywords=[])
            case ast.Call(func=ast.Name(id=function), args=args, keywords=[]) if function in _FUNCTIONS:
                given = [self.visit(arg) for arg in args]
                return ast.Call(func=node.func, args=given, keywords=[])
            case ast.Subscript(value=owner, slice=ast.Constant(value=int() | str())):
                return ast.Subscript(value=self.visit(owner), slice=node.slice, ctx=ast.Load())
            case ast.Constant(value=bool() | int() | float()):
                return node
            case _ if isinstance(node, _PLAIN):
                return self.generic_visit(node)
        raise _OtherGuard
