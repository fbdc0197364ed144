"""What one or more runs of a sweep found, check by check, with a denominator that does not move."""

from __future__ import annotations

import json
import shlex
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from fakexport.error import FakexportError

from .comparison import findings_of, is_worse
from .run_file import STATUSES, SweepRecord

NOT_RUN = "not run"
"""The status of a check that a run does not have. It has not passed."""

_MODEL = "SOURCE"


class ResultsError(FakexportError, ValueError):
    """Runs cannot be shown together. One line."""


@dataclass(frozen=True)
class Environment:
    """Package versions and the machine where checks ran; empty where a check took down its node."""

    versions: Mapping[str, str]
    machine: str


@dataclass(frozen=True)
class CheckResults:
    """A check in every run.

    Args:
        command: The check.
        source: The model; the whole command where that is none of `fakexport check`.
        options: The rest of the command: what the model is checked for.
        records: One per run; None where the run does not have it.
    """

    command: str
    source: str
    options: str
    records: tuple[SweepRecord | None, ...]

    @property
    def statuses(self) -> tuple[str, ...]:
        """The status in each run."""
        return tuple(NOT_RUN if record is None else record.status for record in self.records)

    @property
    def change(self) -> str:
        """What it is in the last run, next to the first: `same`, `worse`, `better`, or `not in both`."""
        first, last = self.records[0], self.records[-1]
        if first is None or last is None:
            return "not in both"
        return "worse" if is_worse(first, last) else "better" if is_worse(last, first) else "same"


@dataclass(frozen=True)
class SweepResults:
    """Runs next to each other.

    Args:
        names: The runs, no two alike.
        checks: In the order of the zoo file, or of the runs. Their number is the denominator of every run.
        environments: Where the records are from, in the order in which they occur.
    """

    names: tuple[str, ...]
    checks: tuple[CheckResults, ...]
    environments: tuple[Environment, ...]

    def counts(self, run: int, options: str | None = None) -> dict[str, int]:
        """Return the number of checks of a run by status, from good to bad; zero counts are left out."""
        of = [check for check in self.checks if options is None or check.options == options]
        found = Counter(check.statuses[run] for check in of)
        return {status: found[status] for status in (*STATUSES, NOT_RUN) if found[status]}

    def reasons(self, run: int) -> list[tuple[str, str, int]]:
        """Return why checks do not export, as status, reason and number, the most frequent first.

        A reason that names the model is the same as that of another model.
        """
        found = Counter(
            (record.status, record.reason.replace(check.source, _MODEL))
            for check in self.checks
            if (record := check.records[run]) is not None and record.status != STATUSES[0]
        )
        return [(*key, count) for key, count in sorted(found.items(), key=lambda each: (-each[1], each[0]))]

    def environment(self, record: SweepRecord) -> int:
        """Return the position of a record's environment."""
        return self.environments.index(environment_of(record))


def environment_of(record: SweepRecord) -> Environment:
    """Return where a check ran."""
    return Environment(record.versions, record.machine)


def collect_results(
    runs: Sequence[tuple[str, Mapping[str, SweepRecord]]], commands: Sequence[str] | None = None
) -> SweepResults:
    """Put runs next to each other.

    Args:
        runs: Name and records of each, in order; at least one.
        commands: All checks there are, such as those of a zoo file. None: those that any of the runs has.
    Raises:
        ResultsError: there are no checks, one of them is not in `commands`, or a name is there twice.
    """
    names = tuple(name for name, _ in runs)
    for name in names:
        if names.count(name) > 1:
            raise ResultsError(f"two runs are called {name!r}: rename one of the files")
    if commands is None:
        commands = list(dict.fromkeys(command for _, records in runs for command in records))
    if not commands:
        raise ResultsError("there is no check in any of the runs")
    known = frozenset(commands)
    for name, records in runs:
        other = next((command for command in records if command not in known), None)
        if other is not None:
            raise ResultsError(f"{name} has a check that the zoo file does not have: {other}")
    checks = tuple(
        CheckResults(each, *_parts(each), tuple(records.get(each) for _, records in runs))
        for each in commands
    )
    environments: list[Environment] = []
    for record in (record for check in checks for record in check.records if record is not None):
        if (found := environment_of(record)) not in environments:
            environments.append(found)
    return SweepResults(names, checks, tuple(environments))


def _parts(command: str) -> tuple[str, str]:
    """Return the source and the options of a command."""
    try:
        program, name, source, *options = shlex.split(command)
    except ValueError:
        return command, ""
    return (source, shlex.join(options)) if (program, name) == ("fakexport", "check") else (command, "")


RESULTS_SCHEMA = "fakexport.sweep-report/1"
"""Name and version of the format. The version rises when a field changes its meaning or goes away."""


def results_text(results: SweepResults) -> str:
    """Return `results_to_dict` as JSON text in ASCII, with a line per check, ending in one line end."""
    data = results_to_dict(results)
    checks = data.pop("checks")
    head = json.dumps(data, indent=2, allow_nan=False).removesuffix("\n}")
    lines = (json.dumps(check, separators=(",", ":"), allow_nan=False) for check in checks)
    return f'{head},\n  "checks": [\n' + ",\n".join(lines) + "\n  ]\n}\n"


def results_to_dict(results: SweepResults) -> dict[str, Any]:
    """Return the results as dicts, lists, strings, numbers, booleans and None; the same for the same runs.

    `sweep.schema.json` is its JSON Schema.
    """
    return {
        "schema": RESULTS_SCHEMA,
        "total": len(results.checks),
        "runs": [_run(results, run, name) for run, name in enumerate(results.names)],
        "environments": [asdict(each) for each in results.environments],
        "checks": [_check(results, check) for check in results.checks],
    }


def _run(results: SweepResults, run: int, name: str) -> dict[str, Any]:
    every = dict.fromkeys((*STATUSES, NOT_RUN), 0)
    return {
        "name": name,
        "counts": {**every, **results.counts(run)},
        "reasons": [
            dict(zip(("status", "reason", "count"), each, strict=True)) for each in results.reasons(run)
        ],
    }


def _check(results: SweepResults, check: CheckResults) -> dict[str, Any]:
    return {
        **{name: getattr(check, name) for name in ("command", "source", "options")},
        "results": [None if record is None else _result(results, record) for record in check.records],
    }


def _result(results: SweepResults, record: SweepRecord) -> dict[str, Any]:
    return {
        **{name: getattr(record, name) for name in ("status", "reason", "seconds", "peak_bytes")},
        "environment": results.environment(record),
        "codes": list(dict.fromkeys(finding.code for finding in findings_of(record))),
    }
