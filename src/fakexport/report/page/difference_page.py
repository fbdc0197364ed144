"""How two programs or archives differ, as a page."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from fakexport.report.archive_difference_text import fact_text, weight_text
from fakexport.report.difference_listing import difference_headline, difference_items
from fakexport.report.page.document import (
    Cell,
    Column,
    Document,
    Items,
    Paragraph,
    Part,
    Row,
    Section,
    Table,
    Tone,
)
from fakexport.report.verdict import TargetDifference

if TYPE_CHECKING:
    from fakexport.archive import ArchiveDifference
    from fakexport.program import ProgramDifference

_COLUMNS = (Column("difference"), Column("kind", is_choice=True))


def archive_difference_document(found: ArchiveDifference) -> Document:
    """Return the page of `fakexport diff`: programs, weights, and how the archives are described."""
    sections = (
        Section(
            "Program", tuple(difference_parts(TargetDifference(found.path_a, found.path_b, found.program)))
        ),
        Section(
            "Weights",
            _one("Weights that differ", ((item.field, weight_text(item)) for item in found.weights)),
        ),
        Section(
            "Described as", _one("Descriptions that differ", ((i.field, fact_text(i)) for i in found.facts))
        ),
        Section("Notes", (Items(found.notes),) if found.notes else ()),
    )
    return Document(
        f"{found.path_a} → {found.path_b}",
        "same program, same weights" if found.is_same else "the archives differ",
        "good" if found.is_same else "bad",
        sections,
        "fakexport diff --format json",
    )


def program_difference_document(found: ProgramDifference) -> Document:
    """Return the page of a difference between two programs that have no names."""
    parts = tuple(difference_parts(TargetDifference("first", "second", found)))
    tone: Tone | None = "good" if found.is_identical else None
    return Document(
        "Difference of two programs",
        difference_headline(found),
        tone,
        (Section("Program", parts),),
        "the value",
    )


def difference_parts(difference: TargetDifference) -> Iterator[Part]:
    """Yield what there is to say, and a row per difference where there are some."""
    found = difference.difference
    title = f"{difference.first} → {difference.second}"
    yield Paragraph(f"{title}: {difference_headline(found)}")
    items = ((kind, text) for kind, texts in difference_items(found) for text in texts)
    yield from _one(f"From {difference.first} to {difference.second}", items)


def _one(caption: str, items: Iterable[tuple[str, str]]) -> tuple[Table, ...]:
    """Return a table, or nothing where it would be empty."""
    rows = tuple(Row((Cell(text), Cell(kind))) for kind, text in items)
    return (Table(caption, _COLUMNS, rows),) if rows else ()
