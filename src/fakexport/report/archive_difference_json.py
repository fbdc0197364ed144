"""The comparison of two archives as data for other programs; `docs/json.md` documents it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from fakexport.report.as_json import plain

if TYPE_CHECKING:
    from fakexport.archive import ArchiveDifference

DIFF_SCHEMA = "fakexport.diff/1"
"""Name and version of the format. The version rises when a field changes its meaning or goes away."""


def archive_difference_to_dict(found: ArchiveDifference) -> dict[str, Any]:
    """Return every field as plain data; `diff.schema.json` is its JSON Schema."""
    return {
        "schema": DIFF_SCHEMA,
        "is_same": found.is_same,
        "notes": list(found.notes),
        "program": {"first": found.path_a, "second": found.path_b, **plain(found.program)},
        "weights": plain(found.weights),
        "facts": plain(found.facts),
    }
