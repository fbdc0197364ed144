"""Render transfers between devices, and the device literals of a program, as text."""

from __future__ import annotations

import re
from collections.abc import Hashable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

from fakexport.files import escaped
from fakexport.report.quantity import bytes_text, device_names, plural
from fakexport.report.table import layout
from fakexport.report.verdict import Verdict
from fakexport.rules.diagnostics import Diagnostic, Span, render_text

if TYPE_CHECKING:
    from fakexport.exporting.interface import Transfer
    from fakexport.exporting.program import DeviceListing, DeviceLiteral

_MOST_SINGLE_LINES = 20
_MOST_LINES = 40
_NUMBER = re.compile(r"[0-9]+")
_INSTALLED = re.compile(r".*[/\\](?:site|dist)-packages[/\\]")


def transfer_listing(verdict: Verdict, *, width: int) -> list[str]:
    """Return the transfers of one target: a heading, then one line per transfer, in the order of execution.

    If there are more than 20 transfers, transfers from the same source line that differ only in layer and
    route are merged into one line, which shows their count and the bytes of one tensor.
    """
    groups = _groups(verdict.transfers)
    shown, hidden = groups[:_MOST_LINES], groups[_MOST_LINES:]
    is_folded = any(len(group) > 1 for group in groups)
    cells = [_cells(group, is_folded=is_folded) for group in shown]
    lines = layout(cells, right=(0,) if is_folded else (), indent=_INDENT)
    listing = [
        _heading(verdict),
        *_with_places(lines, [escaped(place_text(group[0].span)) for group in shown], width),
    ]
    if hidden:
        listing.append(f"{_INDENT}and {sum(map(len, hidden)):,} more; --format json lists them all")
    return listing


def transferred_text(transfers: Sequence[Transfer]) -> str:
    """Return the number and bytes of transfers: `7 (1.2 MiB)`, with `?` for unknown sizes."""
    return f"{len(transfers):,} ({total_bytes_text(transfers)})" if transfers else "0"


def route_text(transfer: Transfer) -> str:
    """Return `cpu -> cuda:0`."""
    return f"{transfer.source} -> {transfer.target}"


def place_text(span: Span | None) -> str:
    """Return `model.py:7`; for installed packages, without the site-packages folder; "" for no place."""
    return "" if span is None else f"{_INSTALLED.sub('', span.path)}:{span.line}"


def _heading(verdict: Verdict) -> str:
    count, size = plural(len(verdict.transfers), "transfer"), total_bytes_text(verdict.transfers)
    is_symbolic = any(transfer.bytes_expression for transfer in verdict.transfers)
    sizes = " at the example sizes" if is_symbolic else ""
    return escaped(f"  {verdict.target.name}: {count}, {size} per call{sizes}")


def total_bytes_text(transfers: Sequence[Transfer]) -> str:
    known = [transfer.bytes for transfer in transfers if transfer.bytes is not None]
    parts = [bytes_text(sum(known))] if known else []
    return " + ".join([*parts, "?"] if len(known) < len(transfers) else parts)


def _groups(transfers: Sequence[Transfer]) -> list[list[Transfer]]:
    if len(transfers) <= _MOST_SINGLE_LINES:
        return [[transfer] for transfer in transfers]
    groups: dict[Hashable, list[Transfer]] = {}
    for transfer in transfers:
        groups.setdefault(_likeness(transfer), []).append(transfer)
    return list(groups.values())


def _likeness(transfer: Transfer) -> Hashable:
    """Return a key that is equal for transfers that differ only in the layer number and the route."""
    place = (transfer.span.path, transfer.span.line) if transfer.span else None
    tensor = (transfer.dtype, transfer.shape, transfer.bytes)
    return tensor, place, transfer.operator, _NUMBER.sub("#", transfer.module_path)


def _cells(group: Sequence[Transfer], *, is_folded: bool) -> list[str]:
    first = group[0]
    size = "?" if first.bytes is None else bytes_text(first.bytes)
    cells = [_routes(group), size, f"{first.dtype}[{', '.join(first.shape)}]", _modules(group)]
    return [escaped(cell) for cell in ([f"{len(group)} x", *cells] if is_folded else cells)]


def _routes(group: Sequence[Transfer]) -> str:
    """Return `cuda:0 -> cuda:1 -> ...` (chain), `cpu -> cuda:0..7` (fan-out), or a route and a count."""
    routes = list(dict.fromkeys((transfer.source, transfer.target) for transfer in group))
    sources, targets = [route[0] for route in routes], [route[1] for route in routes]
    if len(routes) == 1 or len(set(sources)) == 1:
        return f"{sources[0]} -> {device_names(targets)}"
    if sources[1:] == targets[:-1]:
        between = " -> ... -> " if len(routes) > 2 else f" -> {targets[0]} -> "
        return f"{sources[0]}{between}{targets[-1]}"
    return f"{sources[0]} -> {targets[0]} and {plural(len(routes) - 1, 'other route')}"


def _modules(group: Sequence[Transfer]) -> str:
    """Return a module path. A range such as `model.layers.15..110` covers paths that differ in one index."""
    paths = list(dict.fromkeys(transfer.module_path for transfer in group))
    if len(paths) == 1:
        return paths[0]
    first, last = _NUMBER.findall(paths[0]), _NUMBER.findall(paths[-1])
    differing = [i for i, pair in enumerate(zip(first, last, strict=True)) if pair[0] != pair[1]]
    if len(differing) != 1:
        return f"{paths[0]} and {plural(len(paths) - 1, 'other')}"
    position = list(_NUMBER.finditer(paths[0]))[differing[0]]
    return f"{paths[0][: position.end()]}..{last[differing[0]]}{paths[0][position.end() :]}"


def _with_places(lines: Sequence[str], places: Sequence[str], width: int) -> Iterator[str]:
    """Add the source line to each line: in a last column or, if that is too wide, below the line."""
    longest = max(map(len, lines))
    fits = longest + 2 + max(map(len, places)) <= width
    for line, place in zip(lines, places, strict=True):
        if fits:
            yield f"{line.ljust(longest)}  {place}".rstrip()
        else:
            yield line
            if place:
                yield f"{_INDENT}    {place}"


_INDENT = "    "


def render_device_literals(listing: DeviceListing) -> str:
    """Return one line per device literal in the order of execution, then the diagnostics, then a summary.

    Literals of the same source line that differ only in the node are merged into one line with their count.
    """
    on = ", ".join(listing.devices) or "no device"
    parts = [
        [escaped(f"hard-coded devices of a program on {on}; `breaks` means: fails on {listing.other_device}")]
    ]
    if listing.literals:
        parts.append(layout(list(_literal_rows(listing)), right=(0,), indent=_INDENT))
    parts += [[render_text(diagnostic)] for diagnostic in listing.diagnostics]
    parts.append([_literal_summary(listing)])
    return "\n\n".join("\n".join(lines) for lines in parts) + "\n"


def render_diagnostics(diagnostics: Iterable[Diagnostic]) -> str:
    """Return the diagnostics below each other, as text with a final newline."""
    return "\n\n".join(map(render_text, diagnostics)) + "\n"


def _literal_rows(listing: DeviceListing) -> Iterator[tuple[str, ...]]:
    breaking = {breakage.literal for breakage in listing.breakages}
    counts: dict[tuple[str, ...], int] = {}
    for literal in listing.literals:
        row = _literal_cells(literal, literal in breaking)
        counts[row] = counts.get(row, 0) + 1
    for row, count in counts.items():
        yield (f"{count} x", *row)


def _literal_cells(literal: DeviceLiteral, is_breaking: bool) -> tuple[str, ...]:
    source = "baked in" if literal.is_baked_in else "intent"
    name = "constant" if literal.kind == "constant" else literal.operator
    cells = (
        f"{source}, breaks" if is_breaking else source,
        literal.kind,
        f"{name} {literal.argument}={literal.device}",
        place_text(literal.span),
    )
    return tuple(map(escaped, cells))


def _literal_summary(listing: DeviceListing) -> str:
    baked = sum(literal.is_baked_in for literal in listing.literals)
    nodes = len({breakage.node for breakage in listing.breakages})
    of_all = plural(len(listing.literals), "device literal")
    return f"{of_all}, {baked} baked in; {plural(nodes, 'node')} would fail on {listing.other_device}"
