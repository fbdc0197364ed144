"""The diagnostics of a check, read from the report that is in its record."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from fakexport.documents import DocumentError, field, items, mapping, text

from .run_file import SweepRecord


@dataclass(frozen=True)
class Finding:
    """A diagnostic, as far as a sweep shows it.

    Args:
        code, severity, message: As in the report.
        place: `model.py:7`; "" where none is known.
        notes: Further facts.
        fix: The repair; "" where there is none.
    """

    code: str
    severity: str
    message: str
    place: str
    notes: tuple[str, ...]
    fix: str


def findings_of(record: SweepRecord) -> tuple[Finding, ...]:
    """Return the diagnostics of a record; none where there is no report, or not one that is understood."""
    try:
        return tuple(field(record.report or {}, "diagnostics", lambda found: items(found, _finding), []))
    except DocumentError:
        return ()


def _finding(value: Any) -> Finding:
    found = mapping(value)
    labels = field(found, "labels", lambda each: items(each, mapping), [])
    primary = next((label for label in labels if label.get("is_primary") is True), {})
    fix = found.get("fix")
    return Finding(
        field(found, "code", text),
        field(found, "severity", text),
        field(found, "message", text),
        _place(primary.get("span")),
        tuple(field(found, "notes", lambda notes: items(notes, text), [])),
        "" if fix is None else field(mapping(fix), "message", text),
    )


def _place(span: Any) -> str:
    if span is None:
        return ""
    owner = mapping(span)
    line = owner.get("line")
    return f"{field(owner, 'path', text)}:{line}" if type(line) is int else field(owner, "path", text)
