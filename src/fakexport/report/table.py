"""Text in columns and within a width."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Sequence

from fakexport.diagnostics import escaped

_GAP = "  "


def layout(rows: Sequence[Sequence[str]], *, right: Iterable[int] = (), indent: str = "") -> list[str]:
    """Return one line per row, the cells below each other and two blanks apart."""
    if not rows:
        return []
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    to_the_right = frozenset(right)
    lines = (
        _GAP.join(_padded(cell, widths[i], i in to_the_right) for i, cell in enumerate(row)) for row in rows
    )
    return [(indent + line).rstrip() for line in lines]


def wide_layout(
    rows: Sequence[Sequence[str]], *, width: int, right: Iterable[int] = (), indent: str = ""
) -> list[str]:
    """Return the rows as one table, or as several below each other, none wider than `width`.

    Each table begins with the first column, which says what the row is about. A table has at least one
    further column, so a single column may still be too wide.
    """
    if not rows:
        return []
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines: list[str] = []
    for columns in _groups(widths, width - len(indent)):
        part = [[row[i] for i in columns] for row in rows]
        if lines:
            lines.append("")
        lines += layout(part, right=[columns.index(i) for i in right if i in columns], indent=indent)
    return lines


def wrapped(text: str, width: int, *, first: str = "", later: str = "") -> list[str]:
    """Return the text escaped and broken between words, never within one."""
    return textwrap.wrap(
        escaped(text),
        width=width,
        initial_indent=first,
        subsequent_indent=later,
        break_long_words=False,
        break_on_hyphens=False,
    )


def _groups(widths: Sequence[int], room: int) -> list[list[int]]:
    """Return indices of the columns of each table."""
    groups = [[0]]
    used = widths[0]
    for index, width in enumerate(widths[1:], start=1):
        if len(groups[-1]) > 1 and used + len(_GAP) + width > room:
            groups.append([0])
            used = widths[0]
        groups[-1].append(index)
        used += len(_GAP) + width
    return groups


def _padded(cell: str, width: int, is_right: bool) -> str:
    return cell.rjust(width) if is_right else cell.ljust(width)
