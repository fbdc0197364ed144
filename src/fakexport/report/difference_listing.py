"""Render the differences between two programs or two archives as text."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from fakexport.files import escaped
from fakexport.report.quantity import bytes_text, plural
from fakexport.report.table import paragraphs, wrapped
from fakexport.report.transfer_listing import place_text, route_text
from fakexport.report.verdict import TargetDifference

if TYPE_CHECKING:
    from fakexport.archive import ArchiveDifference, FactDifference, WeightDifference
    from fakexport.exporting.interface import NodeGroup, ProgramDifference, SignatureDifference, Transfer


def difference_listing(difference: TargetDifference, *, width: int) -> list[str]:
    """Return a headline, and one paragraph of at most 12 items per kind of difference."""
    found = difference.difference
    head = escaped(f"  {difference.first} -> {difference.second}: {difference_headline(found)}")
    return [head, *_paragraphs(difference_items(found), width)]


def _paragraphs(titled: Iterable[tuple[str, list[str]]], width: int) -> Iterator[str]:
    return paragraphs(titled, width=width, margin=13, indent="    ")


def difference_headline(found: ProgramDifference) -> str:
    if found.is_identical:
        return "identical"
    if found.is_identical_but_for_devices:
        return "identical except for devices"
    if found.node_count_a == found.node_count_b:
        return f"{plural(found.node_count_a, 'node')} each"
    return f"{found.node_count_a:,} -> {plural(found.node_count_b, 'node')}"


def difference_items(found: ProgramDifference) -> Iterator[tuple[str, list[str]]]:
    """Yield the name of each kind of difference, and a list of the differences, which may be empty."""
    yield "operators", [f"{item.operator} {item.count_a:,} -> {item.count_b:,}" for item in found.operators]
    yield "removed", [_group(item) for item in found.nodes_removed]
    yield "added", [_group(item) for item in found.nodes_added]
    yield "rewired", [_group(item) for item in found.nodes_rewired]
    yield "order", ["nodes in both programs are in a different order"] * found.is_reordered
    yield "changed", [f"{_group(item.nodes)}: {item.field} {item.a} -> {item.b}" for item in found.changes]
    yield (
        "devices",
        [f"{item.device_a} -> {item.device_b} in {plural(item.count, 'value')}" for item in found.devices],
    )
    yield (
        "transfers",
        [f"removed {_transfer(item)}" for item in found.transfers_removed]
        + [f"added {_transfer(item)}" for item in found.transfers_added],
    )
    yield "constants", [f"{item.name}: {_values(item.field, item.a, item.b)}" for item in found.constants]
    yield "signature", [_signature(item) for item in found.signature]
    yield "ranges", [f"{item.symbol}: {item.a or 'none'} -> {item.b or 'none'}" for item in found.ranges]
    yield (
        "properties",
        [
            f"{item.kind} no longer {item.a}" if item.a else f"{item.kind} now {item.b}"
            for item in found.properties
        ],
    )


def _group(item: NodeGroup) -> str:
    where = ", ".join(text for text in (item.module_path, place_text(item.span)) if text)
    return f"{item.count:,} x {item.operator}" + (f"  ({where})" if where else "")


def _transfer(item: Transfer) -> str:
    size = "? bytes" if item.bytes is None else bytes_text(item.bytes)
    where = ", ".join(text for text in (item.module_path, place_text(item.span)) if text)
    return f"{route_text(item)}, {size}" + (f"  ({where})" if where else "")


def _signature(item: SignatureDifference) -> str:
    times = f" ({item.count} times)" if item.count > 1 else ""
    return f"{item.side} {item.name}, {item.kind}: {_values(item.field, item.a, item.b)}{times}"


def _values(field: str, a: str, b: str) -> str:
    if field == "presence" and not (a and b):
        return "only in the second program" if b else "only in the first program"
    return f"{field} {a or 'none'} -> {b or 'none'}"


_MOST_NAMES = 4


def render_archive_difference(found: ArchiveDifference, *, width: int = 100) -> str:
    """Return the differences in programs, weights and descriptions, and a summary line.

    The text has no colors, and the same archives always produce the same text. A list shows at most 12 items.
    """
    lines = [line for note in found.notes for line in wrapped(f"note: {note}", width)]
    lines += difference_listing(TargetDifference(found.path_a, found.path_b, found.program), width=width)
    weights = [weight_text(item) for item in found.weights]
    facts = [fact_text(item) for item in found.facts]
    lines += _paragraphs([("weights", weights), ("metadata", facts)], width)
    summary = "same program, same weights" if found.is_same else "the archives differ"
    return "\n".join([*lines, "", summary]) + "\n"


def weight_text(item: WeightDifference) -> str:
    # Imported here because the weights package imports torch, and this package must not.
    from fakexport.archive.weights import fold_names

    names = fold_names(item.names)
    more = f" and {len(names) - _MOST_NAMES} more" if len(names) > _MOST_NAMES else ""
    where = f"{plural(len(item.names), 'weight')}: {', '.join(names[:_MOST_NAMES])}{more}"
    if item.field == "presence":
        return f"only in the {'second' if item.b else 'first'} archive: {where}"
    if item.field == "data":
        return f"different data in {where}"
    return f"{item.field} {item.a or 'none'} -> {item.b or 'none'} in {where}"


def fact_text(item: FactDifference) -> str:
    return f"{item.field}: {item.a or 'none'} -> {item.b or 'none'}"
