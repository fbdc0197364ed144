"""Combine one or more runs of a sweep, with the same number of checks for every run; write `sweep.json`."""

from __future__ import annotations

import json
import shlex
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from fakexport.error import FakexportError
from fakexport.report import RuntimeResult, to_dict

from .comparison import Finding, answers_of, findings_of, is_worse
from .run_file import STATUSES, SweepRecord

NOT_RUN = "not run"
"""Status of a check that a run lacks. It counts as not passed."""

_MODEL = "SOURCE"


class ResultsError(FakexportError, ValueError):
    """Runs cannot be displayed together. The message is one line."""


@dataclass(frozen=True)
class Environment:
    """Where checks ran.

    Args:
        versions: Package -> version; empty if a check crashed the node that it ran on.
        machine: System, processor and memory; empty in the same case as `versions`.
    """

    versions: Mapping[str, str]
    machine: str


@dataclass(frozen=True)
class SweepReason:
    """A reason why checks do not export.

    Args:
        status: The status of these checks.
        reason: The reason, with `SOURCE` for the model.
        count: Number of checks with this reason.
    """

    status: str
    reason: str
    count: int


@dataclass(frozen=True)
class SweepRun:
    """One run.

    Args:
        name: Name of the run's file without its suffix; its path if two files have the same name.
        counts: Status -> number of checks, including `not run`. The numbers add up to `total`.
        reasons: Reasons why checks do not export, the most frequent first.
    """

    name: str
    counts: Mapping[str, int]
    reasons: tuple[SweepReason, ...]


@dataclass(frozen=True)
class SweepResult:
    """A check in one run.

    Args:
        status: The outcome of the check.
        reason: One line with the reason; empty if the model exports.
        seconds: Run time of the check's process.
        peak_bytes: Peak resident memory of the check's process.
        environment: Index in `environments`, from 0.
        findings: The diagnostics.
        runtimes: Answers of the requested runtimes, such as `{"onnx": "taken"}`.
    """

    status: str
    reason: str
    seconds: float
    peak_bytes: int
    environment: int
    findings: tuple[Finding, ...]
    runtimes: Mapping[str, RuntimeResult]

    @property
    def codes(self) -> tuple[str, ...]:
        """Distinct codes of the diagnostics."""
        return tuple(dict.fromkeys(finding.code for finding in self.findings))


@dataclass(frozen=True)
class SweepCheck:
    """The results of one check across all runs.

    Args:
        command: The check, as a command.
        source: The model, or the whole `command` if it is not a `fakexport check` command.
        options: The arguments after the model in the command.
        results: One result per run, or None if a run does not contain the check.
        change: Status in the last run compared with the first: `same`, `worse`, `better`, or `not in both`.
    """

    command: str
    source: str
    options: str
    results: tuple[SweepResult | None, ...]
    change: str

    @property
    def statuses(self) -> tuple[str, ...]:
        return tuple(NOT_RUN if each is None else each.status for each in self.results)


@dataclass(frozen=True)
class SweepReport:
    """The results of several runs.

    Args:
        runs: The runs, in the order of the command line.
        environments: The distinct environments in which checks ran.
        checks: The checks, in the order of the zoo file if there is one, otherwise of the runs.
    """

    runs: tuple[SweepRun, ...]
    environments: tuple[Environment, ...]
    checks: tuple[SweepCheck, ...]

    @property
    def total(self) -> int:
        """Number of checks, which is the same for every run."""
        return len(self.checks)

    def results(self, run: int | None = None) -> Iterator[SweepResult]:
        """Yield the results of one run, or of all runs."""
        for check in self.checks:
            own = check.results if run is None else (check.results[run],)
            yield from (each for each in own if each is not None)


def counts(checks: Sequence[SweepCheck], run: int) -> dict[str, int]:
    """Return the number of checks by status in a run, from good to bad. Zero counts are included."""
    found = Counter(check.statuses[run] for check in checks)
    return {status: found[status] for status in (*STATUSES, NOT_RUN)}


def collect_results(
    runs: Sequence[tuple[str, Mapping[str, SweepRecord]]], commands: Sequence[str] | None = None
) -> SweepReport:
    """Combine runs.

    Args:
        runs: Name and records of each run, in order; at least one run.
        commands: All checks, for example the checks of a zoo file. None means all checks that occur in a run.
    Raises:
        ResultsError: the runs are empty, a check is not in `commands`, or two runs have the same name.
    """
    names = tuple(name for name, _ in runs)
    for name in names:
        if names.count(name) > 1:
            raise ResultsError(f"two runs are called {name!r}: rename one of the files")
    if commands is None:
        commands = list(dict.fromkeys(command for _, records in runs for command in records))
    if not commands:
        raise ResultsError("the runs contain no checks")
    known = frozenset(commands)
    for name, records in runs:
        other = next((command for command in records if command not in known), None)
        if other is not None:
            raise ResultsError(f"run {name!r} has results for a check that is not in the zoo file: {other}")
    environments: list[Environment] = []
    checks = tuple(
        _check(each, [records.get(each) for _, records in runs], environments) for each in commands
    )
    found = tuple(SweepRun(name, counts(checks, at), _reasons(checks, at)) for at, name in enumerate(names))
    return SweepReport(found, tuple(environments), checks)


def _check(
    command: str, records: Sequence[SweepRecord | None], environments: list[Environment]
) -> SweepCheck:
    """Combine the records of a check. New environments are appended to `environments`."""
    results = tuple(None if each is None else _result(each, environments) for each in records)
    return SweepCheck(command, *_parts(command), results, _change(records[0], records[-1]))


def _parts(command: str) -> tuple[str, str]:
    try:
        program, name, source, *options = shlex.split(command)
    except ValueError:
        return command, ""
    return (source, shlex.join(options)) if (program, name) == ("fakexport", "check") else (command, "")


def _result(record: SweepRecord, environments: list[Environment]) -> SweepResult:
    environment = Environment(record.versions, record.machine)
    if environment not in environments:
        environments.append(environment)
    return SweepResult(
        record.status,
        record.reason,
        record.seconds,
        record.peak_bytes,
        environments.index(environment),
        findings_of(record),
        answers_of(record),
    )


def _change(first: SweepRecord | None, last: SweepRecord | None) -> str:
    if first is None or last is None:
        return "not in both"
    return "worse" if is_worse(first, last) else "better" if is_worse(last, first) else "same"


def _reasons(checks: Sequence[SweepCheck], run: int) -> tuple[SweepReason, ...]:
    """Return the failures of a run, with the model's name replaced so that equal reasons count together."""
    found = Counter(
        (result.status, result.reason.replace(check.source, _MODEL))
        for check in checks
        if (result := check.results[run]) is not None and result.status != STATUSES[0]
    )
    ordered = sorted(found.items(), key=lambda each: (-each[1], each[0]))
    return tuple(SweepReason(*key, count) for key, count in ordered)


def results_text(report: SweepReport) -> str:
    """Return a report as ASCII JSON text with one line per check and a final line end.

    The same runs produce the same text.
    """
    data = to_dict(report)
    rows = data.pop("checks")
    head = json.dumps(data, indent=2, allow_nan=False).removesuffix("\n}")
    lines = (json.dumps(row, separators=(",", ":"), allow_nan=False) for row in rows)
    return f'{head},\n  "checks": [\n' + ",\n".join(lines) + "\n  ]\n}\n"
