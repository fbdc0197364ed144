"""Find the part of a source line that a diagnostic refers to."""

from __future__ import annotations

import ast
import functools
import linecache
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import CodeType
from typing import Any

from fakexport.rules.diagnostics.diagnostic import Span

_CONDITIONS = (ast.If, ast.IfExp, ast.While, ast.Assert)


def with_columns(span: Span) -> Span:
    """Narrow a span that has no columns, or that covers a whole statement, to the relevant expression.

    Guards and graph nodes have only a line number. For a condition, Python may report the whole `if`,
    `while`, `for` or `... if ... else ...`. The new columns cover the condition, the iterable of a `for`, or
    the value that the line's statement computes, and the origin becomes `source`. Python branches on `not x`
    without computing it, so a span of `x` is extended to `not x`.

    Returns:
        The new span, or the same span if its columns are already correct or the source is not available.
    """
    for negation in _negations(span.path) if span.column else ():
        if is_at(negation.operand, span):
            start, end = _columns(replace(span, line=negation.lineno), negation)
            return replace(span, line=negation.lineno, column=start, end_column=end)
    for node in _source(span.path).by_line.get(span.line, ()):
        part = _part(node)
        if part is not None and part.lineno == span.line and _is_all_of(node, span):
            start, end = _columns(span, part)
            return replace(span, column=start, end_column=end, origin="source")
    return span


def _is_all_of(node: ast.stmt | ast.IfExp, span: Span) -> bool:
    """Return whether a span covers the whole statement or conditional expression, or has no columns."""
    if span.column is None:
        return isinstance(node, ast.stmt)
    start, end = _columns(span, node)
    is_conditional = isinstance(node, (*_CONDITIONS, ast.For))
    return is_conditional and (span.column, span.end_column) == (start, end)


def is_loop_test(span: Span) -> bool:
    """Return whether the span is in the condition of a `while`."""
    return any(_covers(node.test, span) for node in _nodes(span.path, ast.While))


def is_in_for(span: Span) -> bool:
    """Return whether the innermost loop around a span is a `for`, which always ends."""
    around = [node for node in _nodes(span.path, ast.For, ast.While) if _has_line(node, span)]
    return isinstance(max(around, key=lambda node: node.lineno, default=None), ast.For)


def last_line_of_loop(span: Span) -> int:
    """Return the last line of the loop that starts at the span's line, or that line if there is no loop."""
    ends = [node.end_lineno for node in _nodes(span.path, ast.For, ast.While) if node.lineno == span.line]
    return max(ends, default=span.line)


def condition_at(span: Span | None) -> ast.If | ast.IfExp | ast.While | ast.Assert | None:
    """Return the innermost statement or expression whose condition contains the span."""
    nodes = _nodes(span.path, *_CONDITIONS) if span is not None else ()
    found = [node for node in nodes if span is not None and _covers(node.test, span)]
    return max(found, key=lambda node: (node.lineno, node.col_offset), default=None)


def tries_around(span: Span) -> list[ast.Try | ast.With]:
    """Return the `try` and `with` statements whose bodies contain the span's line."""
    return [
        node
        for node in _nodes(span.path, ast.Try, ast.With)
        if node.body[0].lineno <= span.line <= (node.body[-1].end_lineno or 0)
    ]


def is_at(node: ast.expr, span: Span) -> bool:
    """Return whether the span covers exactly this expression."""
    return node.lineno == span.line and _columns(span, node) == (span.column, span.end_column)


def function_at(span: Span | None) -> ast.FunctionDef | None:
    """Return the innermost function that contains the span's line."""
    nodes = _nodes(span.path, ast.FunctionDef) if span is not None else ()
    found = [node for node in nodes if span is not None and _has_line(node, span)]
    return max(found, key=lambda node: node.lineno, default=None)


def function_of(code: CodeType) -> ast.FunctionDef | None:
    """Return the definition of a function, or None if the function was generated or entered at a prompt."""
    for node in _nodes(code.co_filename, ast.FunctionDef):
        lines = (node.lineno, *(decorator.lineno for decorator in node.decorator_list))
        if node.name == code.co_name and min(lines) == code.co_firstlineno:
            return node  # type: ignore[no-any-return]
    return None


def is_formatted(span: Span) -> bool:
    """Return whether the span is an f-string or part of one.

    For an expression in an f-string, Python 3.11 reports the position of the string, and Python 3.12 reports
    the position of the braces.
    """
    return any(_covers(node, span) and _ends_after(node, span) for node in _nodes(span.path, ast.JoinedStr))


def whole_comprehension(span: Span) -> Span:
    """Extend the span of a comprehension's iterable to the whole comprehension. Other spans are not changed.

    If the object cannot be iterated over, Python 3.11 and 3.12 report the position of the comprehension, and
    Python 3.13 reports the position of the iterable.
    """
    for node in _nodes(span.path, *_COMPREHENSIONS):
        over = node.generators[0].iter
        if is_at(over, span) and not isinstance(over, _COMPREHENSIONS):
            start, end = _columns(replace(span, line=node.lineno), node)
            return replace(span, line=node.lineno, column=start, end_column=end)
    return span


def is_negated(span: Span) -> bool:
    """Return whether the span starts with `not`."""
    place = span.line, span.column
    return any((node.lineno, _columns(span, node)[0]) == place for node in _negations(span.path))


def attribute_span(path: str, class_name: str, attribute: str) -> Span | None:
    """Return where a class reads `self.<attribute>`, preferably in its `forward`."""
    owner = next(
        (node for node in _nodes(path, ast.ClassDef) if node.name == class_name.rpartition(".")[2]), None
    )
    methods = [item for item in owner.body if isinstance(item, ast.FunctionDef)] if owner else []
    for method in sorted(methods, key=lambda method: method.name != "forward"):
        for use in ast.walk(method):
            if isinstance(use, ast.Attribute) and ast.unparse(use) == f"self.{attribute}":
                return span_of(use, path, method.name)
    return None


def _part(node: ast.stmt | ast.IfExp) -> ast.expr | None:
    match node:
        case ast.If(test) | ast.While(test) | ast.Assert(test) | ast.IfExp(test):
            return test
        case ast.For(iter=iterated):
            return iterated
        case ast.Assign() | ast.AnnAssign() | ast.AugAssign() | ast.Return() | ast.Expr():
            return node.value
    return None


def _negations(path: str) -> list[ast.UnaryOp]:
    return [node for node in _nodes(path, ast.UnaryOp) if isinstance(node.op, ast.Not)]


def _has_line(node: ast.expr | ast.stmt, span: Span) -> bool:
    return node.lineno <= span.line <= (node.end_lineno or node.lineno)


def _covers(node: ast.expr, span: Span) -> bool:
    if not _has_line(node, span):
        return False
    return span.column is None or (span.line, span.column) >= (node.lineno, _columns(span, node)[0])


def _ends_after(node: ast.expr, span: Span) -> bool:
    """Return whether an expression ends at or after the end of the span, or covers several lines."""
    end = _columns(span, node)[1]
    return span.end_column is None or end is None or span.end_column <= end


def span_of(node: ast.expr, path: str, function: str | None = None) -> Span:
    """Return the source position of a node in a file. `function` is the name of the function around it."""
    start, end = _columns(Span(path, node.lineno), node)
    return Span(path, node.lineno, start, end, function=function, origin="source")


def _columns(span: Span, node: ast.expr | ast.stmt) -> tuple[int, int | None]:
    """Return the start and end columns, counted in characters from 1. `ast` counts UTF-8 bytes from 0.

    The end is None if the node ends on a later line.
    """
    text = linecache.getline(span.path, span.line).encode()
    start, end = (
        len(text[:offset].decode(errors="replace")) + 1 for offset in (node.col_offset, node.end_col_offset)
    )
    return start, end if node.end_lineno == node.lineno else None


def written_places(path: str, function: ast.FunctionDef | None = None) -> Iterator[tuple[ast.expr, Span]]:
    """Yield expressions that a function, or any code of a file, may modify, with their source positions.

    Such expressions are targets of assignments, and objects whose methods are called.
    """
    trees = _nodes(path, ast.Module) if function is None else [function]
    for node in (each for tree in trees for each in ast.walk(tree)):
        targets: list[ast.expr] = []
        match node:
            case ast.Assign():
                targets = node.targets
            case ast.AugAssign() | ast.AnnAssign():
                targets = [node.target]
            case ast.Call(ast.Attribute(owner)):
                targets = [owner]
        for part in (part for target in targets for part in ast.walk(target)):
            if isinstance(part, ast.expr):
                yield part, span_of(part, path, None if function is None else function.name)


# Names of functions that print text, or write it to a log or a profile.
_TELLING = frozenset({
    "critical", "debug", "deprecated", "error", "exception", "info", "log", "print", "range_push",
    "record_function", "skip", "warn", "warn_once", "warning", "warning_once", "write",
})  # fmt: skip


def is_only_told(span: Span) -> bool:
    """Return whether a line only computes text for people, such as an error or log message."""
    around = [
        node
        for nodes in _source(span.path).by_line.values()
        for node in nodes
        if isinstance(node, ast.stmt) and _has_line(node, span)
    ]
    match max(around, key=lambda node: (node.lineno, node.col_offset), default=None):
        case ast.Raise():
            return True
        case ast.Assert(msg=told):
            return told is not None and _covers(told, span)
        case ast.Expr(ast.Call() as call):
            return _is_for_people(call)
        case ast.With(items):
            calls = (item.context_expr for item in items)
            return any(isinstance(call, ast.Call) and _is_for_people(call) for call in calls)
    return False


def _is_for_people(call: ast.Call) -> bool:
    match call.func:
        case ast.Name(name) | ast.Attribute(attr=name):
            return name in _TELLING or "check" in name or "assert" in name
    return False


_COMPREHENSIONS = (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)


@dataclass
class _Source:
    """The syntax nodes of a file: statements and conditional expressions by line, and all nodes by class."""

    by_line: dict[int, list[ast.stmt | ast.IfExp]] = field(default_factory=dict)
    by_kind: dict[type, list[Any]] = field(default_factory=dict)


def _nodes(path: str, *kinds: type) -> list[Any]:
    """Return all nodes of these classes in a file."""
    return [node for kind in kinds for node in _source(path).by_kind.get(kind, ())]


def _source(path: str) -> _Source:
    """Parse a file in its current state. The result is empty if the file is not available or not Python."""
    is_readable = path.endswith(".py") and Path(path).is_file()
    if is_readable:
        return _parsed(path, Path(path).stat().st_mtime_ns)
    return _read(path) if path in linecache.cache else _Source()


@functools.lru_cache(maxsize=32)
def _parsed(path: str, modified_ns: int) -> _Source:
    return _read(path)


def _read(path: str) -> _Source:
    found = _Source()
    try:
        nodes = list(ast.walk(ast.parse("".join(linecache.getlines(path)))))
    except (SyntaxError, ValueError):
        return found
    for node in nodes:
        if isinstance(node, (ast.stmt, ast.IfExp)):
            found.by_line.setdefault(node.lineno, []).append(node)
        found.by_kind.setdefault(type(node), []).append(node)
    return found
