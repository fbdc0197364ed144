"""What stands at a place of a source file: the part of a line that a finding is about."""

from __future__ import annotations

import ast
import functools
import linecache
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from fakexport.diagnostics.diagnostic import Span

__all__ = ["attribute_span", "is_loop_test", "is_negated", "is_test", "with_columns"]


def with_columns(span: Span) -> Span:
    """The span with both columns, where it lacks them and the source is at hand.

    A guard and a graph node know their line only; of a condition, Python may name the whole `while`
    statement. The columns are then those of the test of an `if` or a `while`, of what a `for` runs over, or
    of the value that the line's statement computes. Columns found this way change the origin to `source`.

    Returns:
        The span itself where it has columns, or nothing is found on its line.
    """
    if span.end_column is not None:
        return span
    for node in _at_line(span.path, span.line):
        part = _part(node)
        is_all_of_it = span.column is None or span.column == _columns(span, node)[0]
        if part is not None and part.lineno == span.line and is_all_of_it:
            start, end = _columns(span, part)
            return replace(span, column=start, end_column=end, origin="source")
    return span


def is_test(span: Span) -> bool:
    """Whether the place is a condition of an `if`, a `while` or an `assert`, or part of it."""
    tests = (ast.If, ast.IfExp, ast.While, ast.Assert)
    return any(isinstance(node, tests) and _covers(node.test, span) for node in _nodes(span.path))


def is_loop_test(span: Span) -> bool:
    """Whether the place is the condition of a `while`, or part of it."""
    return any(isinstance(node, ast.While) and _covers(node.test, span) for node in _nodes(span.path))


def is_negated(span: Span) -> bool:
    """Whether the place starts with `not`."""
    return any(
        isinstance(node, ast.UnaryOp)
        and isinstance(node.op, ast.Not)
        and (node.lineno, _columns(span, node)[0]) == (span.line, span.column)
        for node in _nodes(span.path)
    )


def attribute_span(path: str, class_name: str, attribute: str) -> Span | None:
    """Where a class reads `self.<attribute>`: in its `forward`, or else in another method.

    Args:
        path: File of the class.
        class_name: Qualified name of the class.
        attribute: Name of the attribute.
    """
    classes = [node for node in _nodes(path) if isinstance(node, ast.ClassDef)]
    owner = next((node for node in classes if node.name == class_name.rpartition(".")[2]), None)
    methods = [item for item in owner.body if isinstance(item, ast.FunctionDef)] if owner else []
    for method in sorted(methods, key=lambda method: method.name != "forward"):
        for use in ast.walk(method):
            if isinstance(use, ast.Attribute) and ast.unparse(use) == f"self.{attribute}":
                span = Span(path, use.lineno, function=method.name, origin="source")
                start, end = _columns(span, use)
                return replace(span, column=start, end_column=end)
    return None


def _part(node: ast.AST) -> ast.expr | None:
    match node:
        case ast.If(test=test) | ast.While(test=test) | ast.Assert(test=test):
            return test
        case ast.For(iter=iterated):
            return iterated
        case ast.Assign() | ast.AnnAssign() | ast.AugAssign() | ast.Return() | ast.Expr():
            return node.value
    return None


def _at_line(path: str, line: int) -> Iterator[ast.stmt]:
    """The statements whose first line it is, the innermost first."""
    found = [node for node in _nodes(path) if isinstance(node, ast.stmt) and node.lineno == line]
    return reversed(found)


def _covers(node: ast.expr, span: Span) -> bool:
    if not node.lineno <= span.line <= (node.end_lineno or node.lineno):
        return False
    return span.column is None or (span.line, span.column) >= (node.lineno, _columns(span, node)[0])


def _columns(span: Span, node: ast.expr | ast.stmt) -> tuple[int, int | None]:
    """From 1 and in characters; `ast` counts bytes of UTF-8 from 0."""
    text = linecache.getline(span.path, span.line).encode()
    start = len(text[: node.col_offset].decode(errors="replace")) + 1
    if node.end_lineno != node.lineno:
        return start, None
    return start, len(text[: node.end_col_offset].decode(errors="replace")) + 1


def _nodes(path: str) -> tuple[ast.AST, ...]:
    is_readable = path.endswith(".py") and Path(path).is_file()
    if not is_readable and path not in linecache.cache:
        return ()
    return _parsed("".join(linecache.getlines(path)))


@functools.lru_cache(maxsize=8)
def _parsed(source: str) -> tuple[ast.AST, ...]:
    try:
        return tuple(ast.walk(ast.parse(source)))
    except (SyntaxError, ValueError):
        return ()
