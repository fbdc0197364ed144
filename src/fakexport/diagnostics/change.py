"""A change that a fix names, as data: replaced source text, and options of a check."""

from __future__ import annotations

import ast
from collections.abc import Iterable
from dataclasses import dataclass
from linecache import getlines


@dataclass(frozen=True)
class Edit:
    """Text that replaces a part of a source file.

    Args:
        path: The file.
        line, column, end_line, end_column: The part, from 1 and in characters; the end is one past it.
        text: What replaces it.
    """

    path: str
    line: int
    column: int
    end_line: int
    end_column: int
    text: str

    @classmethod
    def of(cls, path: str, node: ast.expr | ast.stmt, text: str) -> Edit:
        """Return the replacement of a node of the tree of a file."""
        lines = getlines(path)

        def character(line: int | None, offset: int | None) -> int:
            # Python counts bytes of UTF-8.
            return len(lines[(line or 1) - 1].encode()[:offset].decode(errors="replace")) + 1

        end_line = node.end_lineno or node.lineno
        return cls(
            path,
            node.lineno,
            character(node.lineno, node.col_offset),
            end_line,
            character(end_line, node.end_col_offset),
            text,
        )

    @classmethod
    def before(cls, path: str, statement: ast.stmt, text: str) -> Edit:
        """Return the insertion of a line before a statement, with its indentation."""
        column = statement.col_offset + 1
        line = statement.lineno
        return cls(path, line, column, line, column, f"{text}\n{' ' * statement.col_offset}")


@dataclass(frozen=True)
class Change:
    """One way to follow a fix.

    Args:
        edits: In source files, none of which overlap.
        assume, inputs: Options that are added.
        dtype: The option that replaces it.
        dynamic: Options that replace those of the same dimension.
        message: What the fix says if this way works and others are named too; "" for all of it.
        answer: The answer of the marked condition for which the change is right; None for both.
    """

    edits: tuple[Edit, ...] = ()
    assume: tuple[str, ...] = ()
    inputs: tuple[str, ...] = ()
    dtype: str | None = None
    dynamic: tuple[str, ...] = ()
    message: str = ""
    answer: bool | None = None


def edited_text(lines: Iterable[str], edits: Iterable[Edit]) -> str:
    """Return the text of a file with edits, of which the first of those that overlap counts."""
    text = "".join(lines)
    starts = [0]
    for line in text.splitlines(keepends=True):
        starts.append(starts[-1] + len(line))
    places = sorted(
        {
            (starts[e.line - 1] + e.column - 1, starts[e.end_line - 1] + e.end_column - 1, e.text)
            for e in edits
        },
        reverse=True,
    )
    begin = len(text) + 1
    for start, end, new in places:
        if end <= begin:
            text, begin = text[:start] + new + text[end:], start
    return text


def line_after(path: str, line: int, edits: Iterable[Edit]) -> int:
    """Return the number that a line of a file has after edits."""
    lost = [e.text.count("\n") - (e.end_line - e.line) for e in edits if e.path == path and e.line <= line]
    return line + sum(lost)
