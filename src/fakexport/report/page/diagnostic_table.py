"""Diagnostics as a table; each opens to its source lines, notes and fix."""

from __future__ import annotations

from collections.abc import Iterable

from fakexport.diagnostics import Diagnostic, Severity, render_text
from fakexport.report.page.document import Cell, Code, Column, Row, Table, Tone
from fakexport.report.transfer_listing import place_text

_TONES: dict[Severity, Tone | None] = {"error": "bad", "warning": "warn", "note": None}
_COLUMNS = (
    Column("finding"),
    Column("severity", is_choice=True),
    Column("code", is_choice=True),
    Column("place"),
    Column("times"),
    Column("targets"),
)


def diagnostic_table(diagnostics: Iterable[Diagnostic]) -> Table:
    """Return a row per diagnostic, in their order; the first error is open."""
    found = list(diagnostics)
    first = next((each for each in found if each.severity == "error"), None)
    rows = tuple(_row(each, is_open=each is first) for each in found)
    return Table("One row per finding; open it for the source and a fix", _COLUMNS, rows)


def _row(found: Diagnostic, *, is_open: bool) -> Row:
    place = "" if found.primary is None else place_text(found.primary.span)
    cells = (
        Cell(found.message),
        Cell(found.severity, tone=_TONES[found.severity]),
        Cell(found.code),
        Cell(place or found.module_path or ""),
        Cell(f"{found.count:,}", found.count),
        Cell(", ".join(found.targets)),
    )
    return Row(cells, (Code(render_text(found)),), is_open)
