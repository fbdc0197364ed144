"""Where a program names devices, as text."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from fakexport.diagnostics import Diagnostic, render_text
from fakexport.documents import escaped
from fakexport.report.quantity import plural
from fakexport.report.table import layout
from fakexport.report.transfer_listing import place_text

if TYPE_CHECKING:
    from fakexport.program import DeviceListing, DeviceLiteral

_INDENT = "    "


def render_device_literals(listing: DeviceListing) -> str:
    """Return one line per literal in the order of execution, then the diagnostics, then a summary.

    Literals of one line of source that are equal but for the node share a line, with their number.
    """
    on = ", ".join(listing.devices)
    parts = [[escaped(f"a program on {on or 'no device'}, and what would fail on {listing.other_device}")]]
    if listing.literals:
        parts.append(layout(list(_rows(listing)), right=(0,), indent=_INDENT))
    parts += [[render_text(diagnostic)] for diagnostic in listing.diagnostics]
    parts.append([_summary(listing)])
    return "\n\n".join("\n".join(lines) for lines in parts) + "\n"


def render_diagnostics(diagnostics: Iterable[Diagnostic]) -> str:
    """Return the diagnostics below each other, as text that ends in one line end."""
    return "\n\n".join(map(render_text, diagnostics)) + "\n"


def _rows(listing: DeviceListing) -> Iterator[tuple[str, ...]]:
    breaking = {breakage.literal for breakage in listing.breakages}
    counts: dict[tuple[str, ...], int] = {}
    for literal in listing.literals:
        row = _cells(literal, literal in breaking)
        counts[row] = counts.get(row, 0) + 1
    for row, count in counts.items():
        yield (f"{count} x", *row)


def _cells(literal: DeviceLiteral, is_breaking: bool) -> tuple[str, ...]:
    source = "baked in" if literal.is_baked_in else "intent"
    name = "constant" if literal.kind == "constant" else literal.operator
    cells = (
        f"{source}, breaks" if is_breaking else source,
        literal.kind,
        f"{name} {literal.argument}={literal.device}",
        place_text(literal.span),
    )
    return tuple(map(escaped, cells))


def _summary(listing: DeviceListing) -> str:
    baked = sum(literal.is_baked_in for literal in listing.literals)
    nodes = len({breakage.node for breakage in listing.breakages})
    of_all = plural(len(listing.literals), "device literal")
    return f"{of_all}, {baked} baked in; {plural(nodes, 'node')} would fail on {listing.other_device}"
