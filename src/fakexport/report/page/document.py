"""Content of an HTML page, without markup. Other modules build it from reports; `rendering.py` renders it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

Tone = Literal["good", "bad", "warn"]


@dataclass(frozen=True)
class Cell:
    """A cell of a table.

    Args:
        text: The content.
        key: Number to sort by; None to sort by the text.
        tone: The color. The same information is also in the text.
    """

    text: str
    key: float | None = None
    tone: Tone | None = None


@dataclass(frozen=True)
class Row:
    """A row of a table: one cell per column, and content that expands below the first cell."""

    cells: tuple[Cell, ...]
    details: tuple[Part, ...] = ()
    is_open: bool = False

    @classmethod
    def of(cls, *cells: str | Cell, details: Iterable[Part] = (), is_open: bool = False) -> Row:
        made = tuple(Cell(cell) if isinstance(cell, str) else cell for cell in cells)
        return cls(made, tuple(details), is_open)


@dataclass(frozen=True)
class Table:
    """A table that can be sorted and, if it is long, filtered.

    Args:
        caption: The caption.
        columns, rows: Headings and rows, in their initial order.
        choices: Headings of columns with few distinct values, by which rows can be filtered.
        left_out: Number of rows that were omitted to limit the size of the page.
    """

    caption: str
    columns: tuple[str, ...]
    rows: tuple[Row, ...]
    choices: tuple[str, ...] = ()
    left_out: int = 0


@dataclass(frozen=True)
class Bar:
    """A horizontal bar: its part of the full length, from 0 to 1, the name of its color, and its meaning."""

    share: float
    color: str
    label: str


@dataclass(frozen=True)
class Branch:
    """A line of a tree: its name, its facts, its children, and highlighted facts such as differences."""

    name: str
    facts: tuple[str, ...]
    children: tuple[Branch, ...] = ()
    is_open: bool = False
    marks: tuple[str, ...] = ()
    bars: tuple[Bar, ...] = ()


@dataclass(frozen=True)
class Tree:
    """A tree with collapsible branches; `left_out` counts lines that were omitted to limit the size."""

    caption: str
    roots: tuple[Branch, ...]
    left_out: int = 0


@dataclass(frozen=True)
class Area:
    """A filled area of a chart: its label, the name of its color, and the outline as an SVG path."""

    label: str
    color: str
    path: str


@dataclass(frozen=True)
class Mark:
    """A label in a chart at (x, y): to the left of that point if `is_left`, otherwise to the right."""

    text: str
    x: float
    y: float
    is_left: bool = False


@dataclass(frozen=True)
class Chart:
    """A chart of filled areas.

    Args:
        caption: The caption.
        description: What the chart shows, in a sentence.
        width, height: The largest coordinates; the origin is at the top left.
        areas: The filled areas, from back to front.
        lines: Y coordinates of horizontal lines.
        marks: The labels.
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
    """One or more sentences."""

    text: str


@dataclass(frozen=True)
class Items:
    """A list of sentences; `left_out` counts sentences that were omitted to limit the size."""

    items: tuple[str, ...]
    left_out: int = 0


@dataclass(frozen=True)
class Code:
    """Preformatted text."""

    text: str


@dataclass(frozen=True)
class Facts:
    pairs: tuple[tuple[str, str], ...]


@dataclass(frozen=True)
class Fixing:
    """How to fix a finding: a title such as `fix (verified)`, an instruction, and a patch or a command."""

    title: str
    text: str
    code: str = ""

    @property
    def copied(self) -> str:
        """The text that the copy button copies."""
        return self.code or self.text


@dataclass(frozen=True)
class Finding:
    """A diagnostic.

    Args:
        code, severity, message: The headline. The code links to its `Explanation` on the page.
        place: The position, such as `model.py:7`; "" if unknown.
        source: Source lines with carets below them; "" if there are none. They are never wrapped.
        facts: Notes and other facts, as pairs of a name and a text.
        fix: How to fix it, if known.
        is_open: Whether `source` and `facts` are visible at first.
    """

    code: str
    severity: str
    message: str
    place: str
    source: str
    facts: tuple[tuple[str, str], ...]
    fix: Fixing | None
    is_open: bool = False


@dataclass(frozen=True)
class Findings:
    """A list of findings; `left_out` counts those that were omitted to limit the size."""

    findings: tuple[Finding, ...]
    left_out: int = 0


@dataclass(frozen=True)
class Explanation:
    """What a diagnostic code means. Codes in other texts of the page link to it."""

    code: str
    message: str
    parts: tuple[Part, ...]


Part = Table | Tree | Chart | Paragraph | Items | Code | Facts | Findings | Explanation


@dataclass(frozen=True)
class Section:
    """Content below a heading; `left_out` counts parts that were omitted to limit the size."""

    title: str
    parts: tuple[Part, ...]
    left_out: int = 0


@dataclass(frozen=True)
class Document:
    """The content of an HTML page.

    Args:
        title: The title.
        lead: The most important fact, in one line.
        tone: Whether the fact in `lead` is good or bad.
        sections: The sections, in order. Sections without parts are not rendered.
        elsewhere: Command that prints all content, such as `fakexport check --format json`. It is shown if
            content was omitted.
        left_out: Number of sections that were omitted to limit the size.
    """

    title: str
    lead: str
    tone: Tone | None
    sections: tuple[Section, ...]
    elsewhere: str
    left_out: int = 0
