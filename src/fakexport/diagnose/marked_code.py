"""Read the code that a diagnostic marks."""

from __future__ import annotations

import ast
from collections.abc import Mapping
from linecache import getline
from typing import Any

from fakexport.diagnostics import Change, Edit, Span, function_at, source_text


def expression_at(span: Span | None) -> ast.expr | None:
    """Return the marked expression; None where it is a part of one or a statement."""
    try:
        return ast.parse(source_text(span) or "", mode="eval").body
    except SyntaxError:
        return None


def replaced(span: Span, text: str) -> tuple[Change, ...]:
    """Return the change of the marked text."""
    if span.column is None or span.end_column is None:
        return ()
    return (Change(edits=(Edit(span.path, span.line, span.column, span.line, span.end_column, text),)),)


def replaced_node(span: Span, node: ast.expr | ast.stmt, text: str) -> tuple[Change, ...]:
    """Return the change of a node in the file of a place."""
    return (Change(edits=(Edit.of(span.path, node, text),)),)


def statement_at(span: Span) -> ast.stmt | None:
    """Return the innermost statement that a line is in, unless another one may not be put before it."""
    function = function_at(span)
    found = [
        node
        for node in (ast.walk(function) if function is not None else ())
        if isinstance(node, ast.stmt) and node.lineno <= span.line <= (node.end_lineno or node.lineno)
    ]
    innermost = max(found, key=lambda node: (node.lineno, node.col_offset), default=None)
    if innermost is None or getline(span.path, innermost.lineno)[: innermost.col_offset].strip():
        return None
    return innermost


def text_of(node: ast.AST) -> str:
    """Return the code of a node."""
    return ast.unparse(node)


def value_of(node: ast.expr, variables: Mapping[str, Any]) -> Any:
    """Return the value of a name, or of an attribute of one."""
    if isinstance(node, ast.Name):
        return variables.get(node.id)
    return (
        getattr(value_of(node.value, variables), node.attr, None) if isinstance(node, ast.Attribute) else None
    )
