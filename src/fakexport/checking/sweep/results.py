"""Combine one or more runs of a sweep, with the same number of checks for every run; write `sweep.json`."""

from __future__ import annotations

import json
import shlex
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from fakexport.error import FakexportError
from fakexport.report import RuntimeResult, to_dict

from .comparison import answers_of, findings_of, is_worse
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
class CheckResults:
    """The results of one check in all runs.

    Args:
        source: The model; the whole command if it is not `fakexport check`.
        options: The arguments after the model in the command.
        records: One per run; None if the run lacks the check.
    """

    command: str
    source: str
    options: str
    records: tuple[SweepRecord | None, ...]

    @property
    def statuses(self) -> tuple[str, ...]:
        return tuple(NOT_RUN if record is None else record.status for record in self.records)

    @property
    def change(self) -> str:
        """Status in the last run compared with the first: `same`, `worse`, `better`, or `not in both`."""
        first, last = self.records[0], self.records[-1]
        if first is None or last is None:
            return "not in both"
        return "worse" if is_worse(first, last) else "better" if is_worse(last, first) else "same"


@dataclass(frozen=True)
class SweepResults:
    """Runs to display together.

    Args:
        names: Unique names of the runs.
        checks: All checks, in the order of the zoo file if there is one, otherwise of the runs. Every run has
            this number of checks.
        environments: The environments of the records, in order of first use.
    """

    names: tuple[str, ...]
    checks: tuple[CheckResults, ...]
    environments: tuple[Environment, ...]

    def counts(self, run: int, options: str | None = None) -> dict[str, int]:
        """Return the number of checks of a run by status, from good to bad. Zero counts are omitted."""
        of = [check for check in self.checks if options is None or check.options == options]
        found = Counter(check.statuses[run] for check in of)
        return {status: found[status] for status in (*STATUSES, NOT_RUN) if found[status]}

    def reasons(self, run: int) -> list[tuple[str, str, int]]:
        """Return the failures as status, reason and count, the most frequent first.

        The model's name in a reason is replaced, so that equal reasons of different models are counted
        together.
        """
        found = Counter(
            (record.status, record.reason.replace(check.source, _MODEL))
            for check in self.checks
            if (record := check.records[run]) is not None and record.status != STATUSES[0]
        )
        return [(*key, count) for key, count in sorted(found.items(), key=lambda each: (-each[1], each[0]))]

    @property
    def runtimes(self) -> tuple[str, ...]:
        """The runtimes that were asked, in order of first use."""
        records = (record for check in self.checks for record in check.records if record is not None)
        return tuple(dict.fromkeys(name for record in records for name in answers_of(record)))

    @property
    def run_environments(self) -> tuple[frozenset[int], ...]:
        """The indices of the environments of each run."""
        runs = zip(*(check.records for check in self.checks), strict=True)
        return tuple(frozenset(self.environment(each) for each in run if each is not None) for run in runs)

    def environment(self, record: SweepRecord) -> int:
        return self.environments.index(environment_of(record))


def environment_of(record: SweepRecord) -> Environment:
    return Environment(record.versions, record.machine)


def collect_results(
    runs: Sequence[tuple[str, Mapping[str, SweepRecord]]], commands: Sequence[str] | None = None
) -> SweepResults:
    """Combine runs.

    Args:
        runs: Name and records of each run, in order; at least one run.
        commands: All checks, for example the checks of a zoo file. None means all checks that occur in a run.
    Raises:
        ResultsError: there are no checks, a check is not in `commands`, or two runs have the same name.
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
    try:
        program, name, source, *options = shlex.split(command)
    except ValueError:
        return command, ""
    return (source, shlex.join(options)) if (program, name) == ("fakexport", "check") else (command, "")


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
        codes: Distinct codes of the diagnostics.
        runtimes: Answers of the requested runtimes, such as `{"onnx": "taken"}`.
    """

    status: str
    reason: str
    seconds: float
    peak_bytes: int
    environment: int
    codes: tuple[str, ...]
    runtimes: Mapping[str, RuntimeResult]


@dataclass(frozen=True)
class SweepCheck:
    """The results of one check across all runs.

    Args:
        command: The check, as a command.
        source: The model, or the whole `command` if it is not a `fakexport check` command.
        options: The arguments after the model in the command.
        results: One result per run, or None if a run does not contain the check.
    """

    command: str
    source: str
    options: str
    results: tuple[SweepResult | None, ...]


@dataclass(frozen=True)
class SweepReport:
    """The results of several runs.

    Args:
        total: Number of checks, which is the same for every run.
        runs: The runs, in the order of the command line.
        environments: The distinct environments in which checks ran.
        checks: The checks, in the order of the zoo file if there is one, otherwise of the runs.
    """

    total: int
    runs: tuple[SweepRun, ...]
    environments: tuple[Environment, ...]
    checks: tuple[SweepCheck, ...]


def results_text(results: SweepResults) -> str:
    """Return a `SweepReport` as ASCII JSON text with one line per check and a final line end.

    The same runs produce the same text.
    """
    checks = tuple(
        SweepCheck(
            check.command,
            check.source,
            check.options,
            tuple(None if record is None else _result(results, record) for record in check.records),
        )
        for check in results.checks
    )
    runs = tuple(_run(results, run, name) for run, name in enumerate(results.names))
    data = to_dict(SweepReport(len(checks), runs, results.environments, checks))
    rows = data.pop("checks")
    head = json.dumps(data, indent=2, allow_nan=False).removesuffix("\n}")
    lines = (json.dumps(row, separators=(",", ":"), allow_nan=False) for row in rows)
    return f'{head},\n  "checks": [\n' + ",\n".join(lines) + "\n  ]\n}\n"


def _run(results: SweepResults, run: int, name: str) -> SweepRun:
    every = dict.fromkeys((*STATUSES, NOT_RUN), 0)
    reasons = tuple(SweepReason(*each) for each in results.reasons(run))
    return SweepRun(name, {**every, **results.counts(run)}, reasons)


def _result(results: SweepResults, record: SweepRecord) -> SweepResult:
    return SweepResult(
        record.status,
        record.reason,
        record.seconds,
        record.peak_bytes,
        results.environment(record),
        tuple(dict.fromkeys(finding.code for finding in findings_of(record))),
        answers_of(record),
    )
