"""Parse the code that a diagnostic marks."""

from __future__ import annotations

import ast
from collections.abc import Mapping
from linecache import getline
from typing import Any

from fakexport.rules.diagnostics import Change, Edit, Span, function_at, source_text


def expression_at(span: Span | None) -> ast.expr | None:
    """Return the marked expression, or None if the span marks a statement or a part of an expression."""
    try:
        return ast.parse(source_text(span) or "", mode="eval").body
    except SyntaxError:
        return None


def replaced(span: Span | None, text: str) -> tuple[Change, ...]:
    """Return an edit that replaces the marked text, or () if its columns are unknown."""
    if span is None or span.column is None or span.end_column is None:
        return ()
    return (Change(edits=(Edit(span.path, span.line, span.column, span.line, span.end_column, text),)),)


def replaced_node(span: Span | None, node: ast.expr | ast.stmt, text: str) -> tuple[Change, ...]:
    """Return an edit that replaces an AST node in the file of a span."""
    return () if span is None else (Change(edits=(Edit.of(span.path, node, text),)),)


def nodes_around(span: Span | None) -> list[ast.AST]:
    """Return the AST nodes of the innermost function around a line."""
    function = function_at(span)
    return [] if function is None else list(ast.walk(function))


def is_branch(span: Span | None) -> bool:
    """Return whether a line decides between two branches, and no branch raises an error directly."""
    for node in nodes_around(span):
        if not isinstance(node, ast.If | ast.IfExp) or span is None:
            continue
        statements = (*node.body, *node.orelse) if isinstance(node, ast.If) else ()
        is_here = node.test.lineno <= span.line <= (node.test.end_lineno or node.test.lineno)
        if is_here and not any(isinstance(each, ast.Raise) for each in statements):
            return True
    return False


def assigned(name: str, span: Span) -> list[ast.Assign]:
    """Return the assignments `name = ...` in the same function before the line of `span`."""
    nodes = (node for node in nodes_around(span) if isinstance(node, ast.Assign) and node.lineno < span.line)
    return [node for node in nodes if list(map(text_of, node.targets)) == [name]]


def statement_at(span: Span | None) -> ast.stmt | None:
    """Return the innermost statement at a line, or None if no statement can be inserted before it."""
    if span is None:
        return None
    found = [
        node
        for node in nodes_around(span)
        if isinstance(node, ast.stmt) and node.lineno <= span.line <= (node.end_lineno or node.lineno)
    ]
    innermost = max(found, key=lambda node: (node.lineno, node.col_offset), default=None)
    if innermost is None or getline(span.path, innermost.lineno)[: innermost.col_offset].strip():
        return None
    return innermost


def text_of(node: ast.AST) -> str:
    """Return the source code of an AST node."""
    return ast.unparse(node)


def value_of(node: ast.expr, variables: Mapping[str, Any]) -> Any:
    """Return the value of `name` or `name.attribute`, looked up in `variables`; None if unknown."""
    if isinstance(node, ast.Name):
        return variables.get(node.id)
    return (
        getattr(value_of(node.value, variables), node.attr, None) if isinstance(node, ast.Attribute) else None
    )
