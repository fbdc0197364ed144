"""Read the code that a diagnostic marks."""

from __future__ import annotations

import ast
from collections.abc import Mapping
from typing import Any

from fakexport.diagnostics import Span, source_text


def expression_at(span: Span | None) -> ast.expr | None:
    """Return the marked expression; None where it is a part of one or a statement."""
    try:
        return ast.parse(source_text(span) or "", mode="eval").body
    except SyntaxError:
        return None


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
