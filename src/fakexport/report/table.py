"""Format text in columns and within a width."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Iterator, Sequence

from fakexport.files import escaped

_GAP = "  "
_MOST_ITEMS = 12


def layout(rows: Sequence[Sequence[str]], *, right: Iterable[int] = (), indent: str = "") -> list[str]:
    """Return one line per row, with aligned columns that are two spaces apart."""
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
    """Return the rows as one table. If it is wider than `width`, split it into tables below each other.

    Each table repeats the first column, which identifies the row, and has at least one other column. It can
    therefore exceed the width if a column is very wide.
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
    """Return the escaped text, wrapped only between words."""
    return textwrap.wrap(
        escaped(text),
        width=width,
        initial_indent=first,
        subsequent_indent=later,
        break_long_words=False,
        break_on_hyphens=False,
    )


def paragraphs(
    titled: Iterable[tuple[str, Sequence[str]]], *, width: int, margin: int, indent: str = ""
) -> Iterator[str]:
    """Yield the lines of titled lists, one item per line, at most 12 items per list. Omit empty lists.

    Args:
        margin: Width of the column of titles.
    """
    for title, items in titled:
        shown = list(items[:_MOST_ITEMS])
        if len(items) > _MOST_ITEMS:
            shown.append(f"and {len(items) - _MOST_ITEMS:,} more; --format json lists them all")
        for number, item in enumerate(shown):
            first = f"{indent}{'' if number else title:<{margin}}"
            later = " " * (len(first) + 2)
            yield from wrapped(item, max(width, len(later) + 32), first=first, later=later)


def _groups(widths: Sequence[int], room: int) -> list[list[int]]:
    """Return the column indices of each table."""
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
