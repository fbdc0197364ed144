"""Read the diagnostics of a sweep, and compare two runs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, cast

from fakexport.files.documents import DocumentError, field, items, mapping, one_of, text
from fakexport.report import RESULT_TEXTS, RuntimeResult

from .run_file import STATUSES, SweepRecord


@dataclass(frozen=True)
class Change:
    """A check with different outcomes, and its record in each run; None for a run without the check."""

    command: str
    before: SweepRecord | None
    after: SweepRecord | None


@dataclass(frozen=True)
class SweepComparison:
    """Two runs, the older one first.

    Args:
        worse: Checks that no longer export, have a worse status, additional error codes or worse answers of
            runtimes.
        missing: Checks that the newer run lacks; these count as worse.
        better, new: The opposite of `worse` and of `missing`.
        same: Number of checks with the same outcome.
    """

    worse: tuple[Change, ...]
    missing: tuple[Change, ...]
    better: tuple[Change, ...]
    new: tuple[Change, ...]
    same: int

    @property
    def is_worse(self) -> bool:
        return bool(self.worse or self.missing)


def compare_runs(before: Mapping[str, SweepRecord], after: Mapping[str, SweepRecord]) -> SweepComparison:
    """Compare the results of two runs, matched by the command of each check."""
    both = [Change(name, before[name], after[name]) for name in before if name in after]
    worse = tuple(change for change in both if is_worse(before[change.command], after[change.command]))
    better = tuple(change for change in both if is_worse(after[change.command], before[change.command]))
    return SweepComparison(
        worse,
        tuple(Change(name, record, None) for name, record in before.items() if name not in after),
        tuple(change for change in better if change not in worse),
        tuple(Change(name, None, record) for name, record in after.items() if name not in before),
        sum(change not in worse and change not in better for change in both),
    )


def is_worse(before: SweepRecord, after: SweepRecord) -> bool:
    """Return whether a check has a worse status than before, additional error codes or worse answers."""
    rank = STATUSES.index(after.status) - STATUSES.index(before.status)
    return rank > 0 or (rank == 0 and (bool(_errors(after) - _errors(before)) or _has_lost(before, after)))


def _has_lost(before: SweepRecord, after: SweepRecord) -> bool:
    """Return whether the answer of a runtime is worse than before."""
    order, now = list(RESULT_TEXTS), answers_of(after)
    return any(order.index(now.get(name, old)) > order.index(old) for name, old in answers_of(before).items())


def _errors(record: SweepRecord) -> set[str]:
    return {finding.code for finding in findings_of(record) if finding.severity == "error"}


@dataclass(frozen=True)
class Finding:
    """A diagnostic as a sweep shows it. The place (`model.py:7`) or the fix is "" if it is missing."""

    code: str
    severity: str
    message: str
    place: str
    notes: tuple[str, ...]
    fix: str


def findings_of(record: SweepRecord) -> tuple[Finding, ...]:
    """Return the diagnostics of a record; none if it has no report in a known format."""
    try:
        return tuple(field(record.report or {}, "diagnostics", lambda found: items(found, _finding), []))
    except DocumentError:
        return ()


def answers_of(record: SweepRecord) -> dict[str, RuntimeResult]:
    """Return the answers of the runtimes by name, for several targets the worst.

    There are none if the record has no report in a known format.
    """
    try:
        targets = field(record.report or {}, "targets", _mappings, [])
        found = [each for target in targets for each in field(target, "runtimes", _mappings, [])]
        answers: dict[str, RuntimeResult] = {}
        for each in found:
            name, result = field(each, "runtime", text), field(each, "result", _result)
            answers[name] = max(answers.get(name, result), result, key=list(RESULT_TEXTS).index)
        return answers
    except DocumentError:
        return {}


def _result(value: Any) -> RuntimeResult:
    return cast("RuntimeResult", one_of(RESULT_TEXTS, "result")(value))


def _mappings(value: Any) -> list[dict[str, Any]]:
    return items(value, mapping)


def _finding(value: Any) -> Finding:
    found = mapping(value)
    labels = field(found, "labels", _mappings, [])
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
