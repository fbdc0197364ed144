"""Merge diagnostics with the same cause into one diagnostic with a count."""

from __future__ import annotations

import re
from collections.abc import Hashable, Iterable
from dataclasses import replace

from fakexport.rules.diagnostics.diagnostic import Diagnostic

_NUMBER = re.compile(r"[0-9]+")


def fold(diagnostics: Iterable[Diagnostic]) -> tuple[Diagnostic, ...]:
    """Merge repeated diagnostics. The results are in order of first appearance.

    A model with 126 identical layers has the same fault 126 times. First, diagnostics of one target are
    merged if they have the same code and primary position, and their labels and module paths differ only in
    numbers (`model.layers.3`, `model.layers.7`). Their counts are added; notes, node and module path are
    taken from the first one. Diagnostics without a position must also have the same notes, apart from the
    module path. Then diagnostics that differ only in target, node and count are merged into one with all
    targets and the largest count, so that `count` is always for one program. If their fixes differ, a
    conditional fix is replaced by its unconditional alternative. Folding twice changes nothing.
    """
    per_target: dict[Hashable, Diagnostic] = {}
    for diagnostic in _one_target_each(diagnostics):
        repeat = (_cause(diagnostic), diagnostic.targets)
        known = per_target.get(repeat)
        per_target[repeat] = replace(known, count=known.count + diagnostic.count) if known else diagnostic

    over_targets: dict[Hashable, Diagnostic] = {}
    for diagnostic in per_target.values():
        fix = diagnostic.fix and diagnostic.fix.without_condition
        finding = (replace(diagnostic, targets=(), node=None, count=1, fix=fix), bool(diagnostic.targets))
        known = over_targets.get(finding)
        over_targets[finding] = _with_targets_of(known, diagnostic) if known else diagnostic
    return tuple(over_targets.values())


def _one_target_each(diagnostics: Iterable[Diagnostic]) -> Iterable[Diagnostic]:
    for diagnostic in diagnostics:
        if not diagnostic.targets:
            yield diagnostic
        for target in diagnostic.targets:
            yield replace(diagnostic, targets=(target,))


def _cause(diagnostic: Diagnostic) -> Hashable:
    """Return a key for a diagnostic's cause. Different messages at the same position are different causes."""
    rule = (diagnostic.code, diagnostic.severity, diagnostic.fault, _numberless(diagnostic.module_path))
    primary = diagnostic.primary
    if primary is None:
        path = diagnostic.module_path
        notes = [note.replace(path, "#") if path else note for note in diagnostic.notes]
        return (*rule, *notes)
    span = primary.span
    return (*rule, span.path, span.line, span.column, span.end_column, _numberless(primary.message))


def _numberless(text: str | None) -> str | None:
    return None if text is None else _NUMBER.sub("#", text)


def _with_targets_of(known: Diagnostic, other: Diagnostic) -> Diagnostic:
    targets = tuple(dict.fromkeys(known.targets + other.targets))
    fix = known.fix if known.fix == other.fix else known.fix and known.fix.without_condition
    return replace(known, targets=targets, count=max(known.count, other.count), fix=fix)
