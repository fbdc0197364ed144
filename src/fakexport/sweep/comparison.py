"""What changed from one run of a sweep to another."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from .findings import findings_of
from .run_file import STATUSES, SweepRecord


@dataclass(frozen=True)
class Change:
    """A check whose outcome is another one.

    Args:
        command: The check.
        before, after: The records; None where a run does not have it.
    """

    command: str
    before: SweepRecord | None
    after: SweepRecord | None


@dataclass(frozen=True)
class SweepComparison:
    """Two runs, from the older to the newer.

    Args:
        worse: Exported before and does not now, ends in a worse way, or has further error codes.
        missing: Was checked before and is not in the newer run: it counts as worse.
        better, new: The other way round.
        same: How many checks have the same outcome.
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
    """Compare what two runs found, by the command of each check."""
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
    """Return whether a check ends in a worse way than before, or with errors that it did not have."""
    rank = STATUSES.index(after.status) - STATUSES.index(before.status)
    return rank > 0 or (rank == 0 and bool(_errors(after) - _errors(before)))


def _errors(record: SweepRecord) -> set[str]:
    return {finding.code for finding in findings_of(record) if finding.severity == "error"}
