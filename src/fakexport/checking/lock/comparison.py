"""Report what changed since a model was locked."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

from fakexport.checking.lock.lock_entry import Key, LockEntry
from fakexport.report import Report, TargetDifference, bytes_text, difference_items
from fakexport.rules import rule
from fakexport.rules.diagnostics import Diagnostic, Fix, Label, Span, fold

if TYPE_CHECKING:
    from fakexport.exporting.interface import NodeGroup, ProgramDifference

LOCK = "fakexport.lock"
_MOST_ITEMS = 3


def locked_report(
    report: Report, now: list[LockEntry], locked: Mapping[Key, LockEntry], *, accept: str
) -> Report:
    """Add the changes since the lock to a report. Return the report unchanged if there are no changes.

    Reports:
        FE002: a model has no entry. FE003: a program or another part of an entry changed.
    """
    differences: list[TargetDifference] = []
    found: list[Diagnostic] = []
    for entry in now:
        known = locked.get(entry.key) or _similar(entry, now, locked)
        if known is None:
            found.append(_missing(entry, accept))
            continue
        difference = _difference(known, entry)
        words = list(_words(difference))
        moved = None if difference is None or words else _first_in_another_order(known, entry)
        if difference is not None and not words:
            how = "in a different order" + " or connected differently" * (moved is None)
            words = [f"the nodes are the same, but {how}"]
        notes = [*_notes(known, entry), *words]
        if notes and difference is not None:
            differences.append(TargetDifference(LOCK, entry.target, difference))
        if notes:
            groups = [] if difference is None else _changed_nodes(difference)
            if moved is not None:
                groups.append(("from this line on, the nodes are in a different order", moved))
            if difference is not None and not any(group.span for _, group in groups):
                groups = [*_removed(difference, entry)]
            found.append(_moved(known, entry, notes, groups, accept))
    if not found:
        return report
    return replace(
        report,
        differences=(*report.differences, *differences),
        diagnostics=(*report.diagnostics, *fold(found)),
    )


def _similar(entry: LockEntry, now: list[LockEntry], locked: Mapping[Key, LockEntry]) -> LockEntry | None:
    """Return the only entry of the same model and target with different options, or None."""
    asked = {other.key for other in now}
    found = [other for key, other in locked.items() if key[:2] == entry.key[:2] and key not in asked]
    return found[0] if len(found) == 1 else None


def _missing(entry: LockEntry, accept: str) -> Diagnostic:
    return rule("FE002").diagnostic(
        notes=(f"{LOCK} has no entry for {entry.source} on {entry.target}{_options(entry)}",),
        fix=Fix("add an entry", command=accept),
        targets=(entry.target,),
    )


def _options(entry: LockEntry) -> str:
    listed = ", ".join(f"{name} {value}" for name, value in entry.options.items())
    return f" with {listed}" if listed else ""


def _moved(
    known: LockEntry, entry: LockEntry, notes: list[str], groups: list[tuple[str, NodeGroup]], accept: str
) -> Diagnostic:
    labels = tuple(_labels(groups))
    if versions := "; ".join(_version_changes(known, entry)):
        notes = [*notes, f"the lock was written with different versions: {versions}"]
    return rule("FE003").diagnostic(
        labels=labels,
        notes=tuple(notes),
        fix=Fix("if the change is intended, accept it and commit the lock", command=accept),
        targets=(entry.target,),
    )


def _difference(known: LockEntry, entry: LockEntry) -> ProgramDifference | None:
    from fakexport.exporting.program import diff_fingerprints

    if known.program is None or entry.program is None or known.program.digest == entry.program.digest:
        return None
    return diff_fingerprints(known.program, entry.program)


def _notes(known: LockEntry, entry: LockEntry) -> Iterator[str]:
    """Yield differences that a comparison of the programs does not describe, such as the verdict."""
    yield from _field("verdict", known.verdict, entry.verdict)
    yield from _field("topology", known.topology, entry.topology)
    for name in sorted(known.options.keys() | entry.options.keys()):
        yield from _field(name, known.options.get(name, "none"), entry.options.get(name, "none"))
    yield from _field("diagnostics", ", ".join(known.codes) or "none", ", ".join(entry.codes) or "none")
    if known.program is not None and entry.program is not None:
        yield from _weights(known.weights, entry.weights)
        yield from _ranks(known, entry)
        for name in sorted(known.runtimes.keys() | entry.runtimes.keys()):
            answers = (each.runtimes.get(name, "not asked") for each in (known, entry))
            yield from _field(name, *answers)


def _weights(known: Mapping[str, int], now: Mapping[str, int]) -> Iterator[str]:
    for device in sorted(known.keys() | now.keys()):
        old, new = known.get(device, 0), now.get(device, 0)
        if old != new:
            yield f"weights on {device}: {bytes_text(old)} -> {bytes_text(new)} ({new - old:+,} bytes)"


def _ranks(known: LockEntry, entry: LockEntry) -> Iterator[str]:
    """Yield a sentence that lists the ranks, except rank 0, whose programs have a different digest."""
    asked = known.ranks.keys() | entry.ranks.keys()
    moved = [rank for rank in asked if known.ranks.get(rank) != entry.ranks.get(rank)]
    if moved:
        yield f"the programs of these ranks changed: {', '.join(sorted(moved, key=int))}"


def _field(name: str, old: str, new: str) -> Iterator[str]:
    if old != new:
        yield f"{name}: {old} -> {new}"


def _words(difference: ProgramDifference | None) -> Iterator[str]:
    """Yield the differences between the programs as `fakexport diff` prints them, one line per kind."""
    if difference is None:
        return
    paragraphs = [(title, items) for title, items in difference_items(difference) if items]
    for title, items in paragraphs:
        more = f"; and {len(items) - _MOST_ITEMS:,} more" if len(items) > _MOST_ITEMS else ""
        yield f"{title}: {'; '.join(items[:_MOST_ITEMS])}{more}"


def _first_in_another_order(known: LockEntry, entry: LockEntry) -> NodeGroup | None:
    """Return the first node whose position changed, for programs with the same nodes.

    There may be none: a lock stores identical nodes only once, at the position of the first one.
    """
    if known.program is None or entry.program is None:
        return None
    pairs = zip(known.program.nodes, entry.program.nodes, strict=False)
    return next((entry.program.places[now] for old, now in pairs if old != now), None)


def _changed_nodes(difference: ProgramDifference) -> list[tuple[str, NodeGroup]]:
    return [
        *(("changed", change.nodes) for change in difference.changes),
        *(("added", group) for group in difference.nodes_added),
        *(("rewired", group) for group in difference.nodes_rewired),
    ]


def _removed(difference: ProgramDifference, entry: LockEntry) -> Iterator[tuple[str, NodeGroup]]:
    """Yield the removed nodes, each at the first line of its module that still has nodes."""
    spans: dict[str, Span] = {}
    for line, place in entry.program.places.items() if entry.program is not None else ():
        if place.span is not None:
            spans.setdefault(line.module_path, place.span)
    for group in difference.nodes_removed:
        yield "removed", replace(group, span=spans.get(group.module_path))


def _labels(groups: list[tuple[str, NodeGroup]]) -> Iterator[Label]:
    """Yield a label for each line of the model with changed nodes; an added node comes first."""
    ordered = sorted(groups, key=lambda item: item[0] != "added")
    by_span: dict[Span, str] = {}
    for what, group in ordered:
        if group.span is not None:
            by_span.setdefault(group.span, f"{what}: {group.count:,} x {group.operator}")
    for number, (span, message) in enumerate(list(by_span.items())[:_MOST_ITEMS]):
        yield Label(span, message, is_primary=number == 0)


def _version_changes(known: LockEntry, entry: LockEntry) -> Iterator[str]:
    for name in sorted(known.versions.keys() | entry.versions.keys()):
        old, new = known.versions.get(name, "none"), entry.versions.get(name, "none")
        if old != new:
            yield f"{name} {old} -> {new}"
