"""What a page shows, as values: the renderer knows no report, and a report no markup."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

Tone = Literal["good", "bad", "warn"]


@dataclass(frozen=True)
class Cell:
    """A cell of a table.

    Args:
        text: What is shown.
        key: What it is sorted by, where that is a number; None sorts by the text.
        tone: How it is colored; the text says the same.
    """

    text: str
    key: float | None = None
    tone: Tone | None = None


@dataclass(frozen=True)
class Row:
    """A row of a table: as many cells as there are columns, and what opens below the first one."""

    cells: tuple[Cell, ...]
    details: tuple[Part, ...] = ()
    is_open: bool = False

    @classmethod
    def of(cls, *cells: str | Cell, details: Iterable[Part] = (), is_open: bool = False) -> Row:
        """Return a row of texts and cells."""
        made = tuple(Cell(cell) if isinstance(cell, str) else cell for cell in cells)
        return cls(made, tuple(details), is_open)


@dataclass(frozen=True)
class Table:
    """A table that can be sorted, and filtered where it is long.

    Args:
        caption: What it is of.
        columns, rows: Headings and rows, in the order in which they are shown first.
        choices: Headings of columns with few values, by which rows can be chosen.
        left_out: How many rows more there are, for which the page has no room.
    """

    caption: str
    columns: tuple[str, ...]
    rows: tuple[Row, ...]
    choices: tuple[str, ...] = ()
    left_out: int = 0


@dataclass(frozen=True)
class Branch:
    """A line of a tree: its name, what there is to say about it, and what is below it."""

    name: str
    facts: tuple[str, ...]
    children: tuple[Branch, ...] = ()
    is_open: bool = False


@dataclass(frozen=True)
class Tree:
    """A tree whose branches open; `left_out` counts the lines for which the page has no room."""

    caption: str
    roots: tuple[Branch, ...]
    left_out: int = 0


@dataclass(frozen=True)
class Area:
    """A filled area of a chart: what it is of, the name of its color, and the outline as an SVG path."""

    label: str
    color: str
    path: str


@dataclass(frozen=True)
class Mark:
    """A text in a chart, at a place of its own coordinates; to the left of it where `is_left`."""

    text: str
    x: float
    y: float
    is_left: bool = False


@dataclass(frozen=True)
class Chart:
    """A picture.

    Args:
        caption: What it is of.
        description: What it shows, for those who do not see it.
        width, height: The greatest coordinates, from the top left.
        areas: From back to front.
        lines: Heights of lines across all of it.
        marks: Texts.
    """

    caption: str
    description: str
    width: int
    height: int
    areas: tuple[Area, ...]
    lines: tuple[float, ...] = ()
    marks: tuple[Mark, ...] = ()


@dataclass(frozen=True)
class Paragraph:
    """A sentence or more."""

    text: str


@dataclass(frozen=True)
class Items:
    """A list of sentences; `left_out` counts those for which the page has no room."""

    items: tuple[str, ...]
    left_out: int = 0


@dataclass(frozen=True)
class Code:
    """Text whose lines and columns matter."""

    text: str


@dataclass(frozen=True)
class Facts:
    """Names with their values."""

    pairs: tuple[tuple[str, str], ...]


Part = Table | Tree | Chart | Paragraph | Items | Code | Facts


@dataclass(frozen=True)
class Section:
    """Parts below a heading; `left_out` counts those for which the page has no room."""

    title: str
    parts: tuple[Part, ...]
    left_out: int = 0


@dataclass(frozen=True)
class Document:
    """A page.

    Args:
        title: What it is about.
        lead: What there is to know first, in one line.
        tone: Whether that is good.
        sections: In order; those without parts are left out.
        elsewhere: Where all of it is, for a page that has no room: `fakexport check --format json`.
        left_out: How many sections more there are, for which the page has no room.
    """

    title: str
    lead: str
    tone: Tone | None
    sections: tuple[Section, ...]
    elsewhere: str
    left_out: int = 0
