"""Find the part of a source line that a diagnostic is about."""

from __future__ import annotations

import ast
import functools
import linecache
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from fakexport.diagnostics.diagnostic import Span

_CONDITIONS = (ast.If, ast.IfExp, ast.While, ast.Assert)


def with_columns(span: Span) -> Span:
    """Return the span of what is computed, where it has no columns or those of a whole statement.

    A guard and a graph node know their line only; of a condition, Python may name the whole `if`, `while`,
    `for` or `... if ... else ...`. The columns are then those of the condition, of what a `for` runs over, or
    of the value that the line's statement computes. Columns found this way change the origin to `source`.

    Python jumps on `not x` without computing it: the place of `x` becomes that of `not x`.

    Returns:
        The span itself where its columns are right, or where the source is not at hand.
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
    """Return whether a span is no more exact than a statement or a conditional expression."""
    if span.column is None:
        return isinstance(node, ast.stmt)
    start, end = _columns(span, node)
    is_conditional = isinstance(node, (*_CONDITIONS, ast.For))
    return is_conditional and (span.column, span.end_column) == (start, end)


def is_test(span: Span) -> bool:
    """Return whether the place is a condition of an `if`, a `while` or an `assert`, or part of it."""
    return any(_covers(node.test, span) for node in _nodes(span.path, *_CONDITIONS))


def is_loop_test(span: Span) -> bool:
    """Return whether the place is the condition of a `while`, or part of it."""
    return any(_covers(node.test, span) for node in _nodes(span.path, ast.While))


def is_in_for(span: Span) -> bool:
    """Return whether the innermost loop around a place is a `for`, which ends by itself."""
    around = [node for node in _nodes(span.path, ast.For, ast.While) if _has_line(node, span)]
    return isinstance(max(around, key=lambda node: node.lineno, default=None), ast.For)


def last_line_of_loop(span: Span) -> int:
    """Return the last line of the `for` that starts at a line; the line itself if none does."""
    ends = [node.end_lineno for node in _nodes(span.path, ast.For, ast.While) if node.lineno == span.line]
    return max(ends, default=span.line)


def condition_at(span: Span | None) -> ast.If | ast.IfExp | ast.While | ast.Assert | None:
    """Return the innermost statement or expression whose condition the place is in."""
    nodes = _nodes(span.path, *_CONDITIONS) if span is not None else ()
    found = [node for node in nodes if span is not None and _covers(node.test, span)]
    return max(found, key=lambda node: (node.lineno, node.col_offset), default=None)


def tries_around(span: Span) -> list[ast.Try | ast.With]:
    """Return the `try` statements in whose bodies a line is, and the `with` statements around it."""
    return [
        node
        for node in _nodes(span.path, ast.Try, ast.With)
        if node.body[0].lineno <= span.line <= (node.body[-1].end_lineno or 0)
    ]


def is_at(node: ast.expr, span: Span) -> bool:
    """Return whether an expression, and no part of it, is at a place."""
    return node.lineno == span.line and _columns(span, node) == (span.column, span.end_column)


def function_at(span: Span | None) -> ast.FunctionDef | None:
    """Return the innermost function that the line is in."""
    nodes = _nodes(span.path, ast.FunctionDef) if span is not None else ()
    found = [node for node in nodes if span is not None and _has_line(node, span)]
    return max(found, key=lambda node: node.lineno, default=None)


def assignments(name: str, function: ast.AST, before: int) -> list[ast.Assign]:
    """Return the assignments of a variable before a line, in the order of the lines."""
    made = (node for node in ast.walk(function) if isinstance(node, ast.Assign) and node.lineno < before)
    return sorted((node for node in made if name in stored(node)), key=lambda node: node.lineno)


def stored(line: ast.AST) -> set[str]:
    """Return the variables that a statement assigns."""
    names = (node for node in ast.walk(line) if isinstance(node, ast.Name))
    return {node.id for node in names if isinstance(node.ctx, ast.Store)}


def block_around(line: ast.stmt, function: ast.FunctionDef) -> list[ast.stmt] | None:
    """Return the body of the `for` loop that a line of a function is directly in; None if it is in none."""
    loops = (node for node in ast.walk(function) if isinstance(node, ast.For))
    return next((loop.body for loop in loops if any(each is line for each in loop.body)), None)


def is_formatted(span: Span) -> bool:
    """Return whether the place is an f-string or part of one.

    Python 3.11 says of what an f-string formats where the string is, 3.12 where the braces are.
    """
    return any(_covers(node, span) and _ends_after(node, span) for node in _nodes(span.path, ast.JoinedStr))


def whole_comprehension(span: Span) -> Span:
    """Return the place of the comprehension that runs over what is at a place; the place itself if none does.

    Where a comprehension gets no iterator, Python 3.11 and 3.12 say the whole, 3.13 what it runs over.
    """
    for node in _nodes(span.path, *_COMPREHENSIONS):
        over = node.generators[0].iter
        if is_at(over, span) and not isinstance(over, _COMPREHENSIONS):
            start, end = _columns(replace(span, line=node.lineno), node)
            return replace(span, line=node.lineno, column=start, end_column=end)
    return span


def is_negated(span: Span) -> bool:
    """Return whether the place starts with `not`."""
    place = span.line, span.column
    return any((node.lineno, _columns(span, node)[0]) == place for node in _negations(span.path))


def attribute_span(path: str, class_name: str, attribute: str) -> Span | None:
    """Return where a class reads `self.<attribute>`: in its `forward`, or else in another method."""
    owner = next(
        (node for node in _nodes(path, ast.ClassDef) if node.name == class_name.rpartition(".")[2]), None
    )
    methods = [item for item in owner.body if isinstance(item, ast.FunctionDef)] if owner else []
    for method in sorted(methods, key=lambda method: method.name != "forward"):
        for use in ast.walk(method):
            if isinstance(use, ast.Attribute) and ast.unparse(use) == f"self.{attribute}":
                span = Span(path, use.lineno, function=method.name, origin="source")
                start, end = _columns(span, use)
                return replace(span, column=start, end_column=end)
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
    """Return whether an expression on one line reaches as far as a place; on several, True."""
    end = _columns(span, node)[1]
    return span.end_column is None or end is None or span.end_column <= end


def columns_of(node: ast.expr | ast.stmt, line: str, margin: int = 0) -> tuple[int, int | None]:
    """Return columns from 1, in characters; `ast` counts bytes of UTF-8 from 0.

    Args:
        node: Without an end where it is on several lines.
        line: The line that it starts on.
        margin: Characters of indentation that were left out when it was parsed.
    """
    text = line[margin:].encode()
    start = margin + len(text[: node.col_offset].decode(errors="replace")) + 1
    if node.end_lineno != node.lineno:
        return start, None
    return start, margin + len(text[: node.end_col_offset].decode(errors="replace")) + 1


def _columns(span: Span, node: ast.expr | ast.stmt) -> tuple[int, int | None]:
    return columns_of(node, linecache.getline(span.path, span.line))


def written_places(tree: ast.AST) -> Iterator[ast.expr]:
    """Yield the expressions that statements or calls may change: targets, and owners of a called method."""
    for node in ast.walk(tree):
        targets: list[ast.expr] = []
        match node:
            case ast.Assign():
                targets = node.targets
            case ast.AugAssign() | ast.AnnAssign():
                targets = [node.target]
            case ast.Call(ast.Attribute(owner)):
                targets = [owner]
        for target in targets:
            yield from (part for part in ast.walk(target) if isinstance(part, ast.expr))


# Names of calls that show a text, or write it to a log or a profile.
_TELLING = frozenset({
    "critical", "debug", "deprecated", "error", "exception", "info", "log", "print", "range_push",
    "record_function", "skip", "warn", "warn_once", "warning", "warning_once", "write",
})  # fmt: skip


def is_only_told(span: Span) -> bool:
    """Return whether what a line computes is for people: the text of an error, or one that is logged."""
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
            return _is_telling(call)
        case ast.With(items):
            calls = (item.context_expr for item in items)
            return any(isinstance(call, ast.Call) and _is_telling(call) for call in calls)
    return False


def _is_telling(call: ast.Call) -> bool:
    match call.func:
        case ast.Name(name) | ast.Attribute(attr=name):
            return name in _TELLING or "check" in name or "assert" in name
    return False


_COMPREHENSIONS = (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)


@dataclass
class _Source:
    """The nodes of a file: statements and conditional expressions by line, and all by their class."""

    by_line: dict[int, list[ast.stmt | ast.IfExp]] = field(default_factory=dict)
    by_kind: dict[type, list[Any]] = field(default_factory=dict)


def _nodes(path: str, *kinds: type) -> list[Any]:
    """Return the nodes of some classes in a file."""
    return [node for kind in kinds for node in _source(path).by_kind.get(kind, ())]


def _source(path: str) -> _Source:
    """Return the file as it is now; empty where it is not at hand or no Python."""
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
