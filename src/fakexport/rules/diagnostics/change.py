"""The change that a fix describes, as data: source edits, and options of a check."""

from __future__ import annotations

import ast
from collections.abc import Iterable
from dataclasses import dataclass
from linecache import getlines


@dataclass(frozen=True)
class Edit:
    """A replacement of a part of a source file.

    Args:
        path: The file.
        line: First line of the part, counted from 1.
        column: First character of the part, counted from 1.
        end_line: Last line of the part.
        end_column: One past the last character of the part.
        text: The new text.
    """

    path: str
    line: int
    column: int
    end_line: int
    end_column: int
    text: str

    @classmethod
    def of(cls, path: str, node: ast.expr | ast.stmt, text: str) -> Edit:
        """Return the edit that replaces a node of a file's syntax tree."""
        lines = getlines(path)

        def character(line: int | None, offset: int | None) -> int:
            # `ast` counts UTF-8 bytes.
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
        """Return the edit that inserts a line before a statement, with the same indentation."""
        column = statement.col_offset + 1
        line = statement.lineno
        return cls(path, line, column, line, column, f"{text}\n{' ' * statement.col_offset}")


@dataclass(frozen=True)
class Change:
    """One way to apply a fix.

    Args:
        edits: Edits of source files. They do not overlap.
        assume: Values of `--assume` to add.
        inputs: Values of `--input` for all inputs. They replace the values of the request.
        dtype: New value of the option `--dtype`.
        dynamic: Values of `--dynamic` to add. They replace values for the same dimension.
        message: Replaces the fix's message if this change is the one that works; "" keeps that message.
        answer: The value of the marked condition for which the change is correct; None if it is correct for
            both values.
    """

    edits: tuple[Edit, ...] = ()
    assume: tuple[str, ...] = ()
    inputs: tuple[str, ...] = ()
    dtype: str | None = None
    dynamic: tuple[str, ...] = ()
    message: str = ""
    answer: bool | None = None


def edited_text(lines: Iterable[str], edits: Iterable[Edit]) -> str:
    """Return the text of a file after edits. If edits overlap, only one of them is applied."""
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
    """Return the number that a line of a file has after the edits."""
    lost = [e.text.count("\n") - (e.end_line - e.line) for e in edits if e.path == path and e.line <= line]
    return line + sum(lost)
