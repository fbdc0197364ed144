"""The comparison of two archives as text for people."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fakexport.report.difference_listing import difference_listing, paragraph
from fakexport.report.quantity import plural
from fakexport.report.table import wrapped
from fakexport.report.verdict import TargetDifference

if TYPE_CHECKING:
    from fakexport.archive import ArchiveDifference, FactDifference, WeightDifference

_MOST_NAMES = 4


def render_archive_difference(found: ArchiveDifference, *, width: int = 100) -> str:
    """Return what differs in the programs, the weights and the descriptions, and one line of summary.

    Plain text without colors; the same archives return the same text. Each list is cut after 12 items.
    """
    lines = [line for note in found.notes for line in wrapped(f"note: {note}", width)]
    lines += difference_listing(TargetDifference(found.path_a, found.path_b, found.program), width=width)
    lines += paragraph("weights", [weight_text(item) for item in found.weights], width)
    lines += paragraph("described as", [fact_text(item) for item in found.facts], width)
    summary = "same program, same weights" if found.is_same else "the archives differ"
    return "\n".join([*lines, "", summary]) + "\n"


def weight_text(item: WeightDifference) -> str:
    # Imported here because the room of weights imports torch, and this one does not.
    from fakexport.weights import fold_names

    names = fold_names(item.names)
    more = f" and {len(names) - _MOST_NAMES} more" if len(names) > _MOST_NAMES else ""
    where = f"{plural(len(item.names), 'weight')}: {', '.join(names[:_MOST_NAMES])}{more}"
    if item.field == "presence":
        return f"only in the {'second' if item.b else 'first'}: {where}"
    if item.field == "data":
        return f"different data in {where}"
    return f"{item.field} {item.a or 'none'} -> {item.b or 'none'} in {where}"


def fact_text(item: FactDifference) -> str:
    return f"{item.field}: {item.a or 'none'} -> {item.b or 'none'}"
