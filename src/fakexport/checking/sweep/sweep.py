"""Run the checks of a sweep, several at the same time."""

from __future__ import annotations

import json
import platform
import signal
import tempfile
import threading
import time
from collections.abc import Callable, Generator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import closing, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from fakexport._version import __version__
from fakexport.files.processes import (
    Ended,
    Limits,
    NoWarmStart,
    TemporaryFolder,
    WarmStart,
    machine_text,
    run_limited,
)
from fakexport.models import PACKAGES, installed_version

from .run_file import STATUSES, RunFile, SweepRecord
from .zoo_file import SweepItem

_INTERNAL_FAULT = "[FE001]"
_ON_THE_COMMAND_LINE = ("--format", "json", "--no-progress")
_MOST_OUTPUT = 16_384
_TIMED_OUT = 124
# A check stops by itself at its limit, and says where it was. It is killed if native code prevents that.
_GRACE_S = 3.0


@dataclass(frozen=True)
class Sweep:
    """Configuration of a sweep.

    Args:
        items: The checks.
        limits: Limits of each process.
        folder: The folder that relative sources refer to.
        module: The Python module that runs each check; see `run_limited`. Its second argument is a folder
            for temporary files. The arguments after it are those of `fakexport`.
        jobs: Number of parallel checks.
        imports: Prefix of a source -> modules that a check with such a source imports first. The processes of
            these checks are forked from a process that has already imported the modules. The longest prefix
            applies.
    """

    items: Sequence[SweepItem]
    limits: Limits
    folder: Path
    module: str
    jobs: int = 1
    imports: Mapping[str, Sequence[str]] = field(default_factory=dict)


@dataclass(frozen=True)
class Tally:
    """Progress of a sweep: finished checks, how many of them do not export, and the remaining time."""

    done: int
    total: int
    bad: int
    seconds_left: float


Records = Callable[[Sweep, Sequence[SweepItem]], Generator[SweepRecord]]
"""Runs checks, and yields each record when it is ready."""


def run_sweep(
    sweep: Sweep,
    file: RunFile,
    on_done: Callable[[Tally], None] | None = None,
    on_cold: Callable[[str], None] | None = None,
    *,
    records_of: Records | None = None,
) -> None:
    """Run the checks that are not in the file yet, and append each result.

    An exception, for example from Ctrl-C, ends the running processes. Their checks are not added to the file.

    Args:
        on_done: Called after each check.
        on_cold: Called once for each reason why checks cannot be forked and must import everything
            themselves.
        records_of: Runs the checks. Default: processes on this machine.
    """
    found = [file.records[command] for item in sweep.items if (command := item.command) in file.records]
    waiting = [item for item in sweep.items if item.command not in file.records]
    started = time.monotonic()
    made = local_records(sweep, waiting, on_cold) if records_of is None else records_of(sweep, waiting)
    with closing(made) as records:
        for ran, record in enumerate(records, 1):
            file.add(record)
            found.append(record)
            if on_done is not None:
                left = (time.monotonic() - started) / ran * (len(waiting) - ran)
                bad = sum(record.status != STATUSES[0] for record in found)
                on_done(Tally(len(found), len(sweep.items), bad, left))


def local_records(
    sweep: Sweep, items: Sequence[SweepItem], on_cold: Callable[[str], None] | None = None
) -> Generator[SweepRecord]:
    """Run checks on this machine, `sweep.jobs` at a time, and yield each record when it is ready."""
    stop = threading.Event()
    start = _Starts(sweep, on_cold, stop)
    with ThreadPoolExecutor(sweep.jobs) as pool, closing(start):
        runs = [pool.submit(check_item, item, sweep, stop, start(item)) for item in items]
        try:
            for future in as_completed(runs):
                yield future.result()
        except BaseException:
            stop.set()
            pool.shutdown(wait=False, cancel_futures=True)
            raise


_Run = Callable[..., Ended]


class _Starts:
    """Starts the process of each check. `close` ends the processes that checks are forked from."""

    def __init__(self, sweep: Sweep, on_cold: Callable[[str], None] | None, stop: threading.Event) -> None:
        self._warm = {start: WarmStart(modules, sweep.folder) for start, modules in sweep.imports.items()}
        self._on_cold, self._stop = on_cold, stop
        self._told: set[str] = set()

    def __call__(self, item: SweepItem) -> _Run:
        starts = [start for start in self._warm if item.source.startswith(start)]
        # An operator library must be imported before anything else.
        if not starts or item.values("--library"):
            return run_limited
        chosen = self._warm[max(starts, key=len)]

        def run(*args: Any, **options: Any) -> Ended:
            try:
                return run_limited(*args, **options, warm=chosen)
            except NoWarmStart as error:
                if self._on_cold is not None and str(error) not in self._told and not self._stop.is_set():
                    self._told.add(str(error))
                    self._on_cold(str(error))
                return run_limited(*args, **options)

        return run

    def close(self) -> None:
        for each in self._warm.values():
            each.close()


def check_item(
    item: SweepItem, sweep: Sweep, stop: threading.Event | None = None, run: _Run = run_limited
) -> SweepRecord:
    """Run a check in a process on this machine, and return its record."""
    own = TemporaryFolder()
    with tempfile.TemporaryFile() as stdout, tempfile.TemporaryFile() as stderr, closing(own):
        seconds = sweep.limits.seconds
        arguments = [own.path, *item.arguments, *_ON_THE_COMMAND_LINE, "--timeout", f"{seconds:g}"]
        ended = run(
            sweep.module,
            arguments,
            replace(sweep.limits, seconds=seconds + _GRACE_S),
            stdout=stdout,
            stderr=stderr,
            folder=sweep.folder,
            stop=stop,
        )
        stdout.seek(0)
        stderr.seek(0)
        report: dict[str, Any] | None = None
        with suppress(ValueError):
            report = json.loads(stdout.read())
        said = stderr.read().decode(errors="replace")
    status, reason = _outcome(ended, report, said, sweep.limits)
    return SweepRecord(
        command=item.command,
        status=status,
        reason=reason,
        seconds=round(ended.seconds, 3),
        peak_bytes=ended.peak_bytes,
        report=report,
        versions=_versions(),
        machine=machine_text(),
        output=said[-_MOST_OUTPUT:] if status == STATUSES[-1] else "",
    )


def _versions() -> dict[str, str]:
    """Return the versions that affect a check. This process has the same packages as the check's process."""
    versions = {name: installed_version(name) for name in ("torch", *PACKAGES)}
    found = {name: version for name, version in versions.items() if version is not None}
    return {"fakexport": __version__, **found, "python": platform.python_version()}


def _outcome(ended: Ended, report: dict[str, Any] | None, said: str, limits: Limits) -> tuple[str, str]:
    exports, fails, refused, out_of_time, out_of_memory, crashes = STATUSES
    if ended.limit == "seconds":
        return out_of_time, f"killed after {limits.seconds + _GRACE_S:g} s"
    if ended.code == _TIMED_OUT:
        return out_of_time, _last_line(said).removeprefix("error: ")
    if ended.limit == "bytes":
        return out_of_memory, f"killed at {limits.bytes:,} bytes of resident memory"
    if ended.code == 0 and report is not None and report["is_clean"]:
        return exports, ""
    if ended.code == 1 and report is not None:
        return fails, _first_error(report)
    if ended.code == 2:
        return (crashes if _INTERNAL_FAULT in said else refused), _last_line(said)
    if ended.code is not None and ended.code < 0:
        last = f"; last output: {_last_line(said)}" if said.strip() else ""
        return crashes, f"killed by {signal.Signals(-ended.code).name}{last}"
    return crashes, f"exit code {ended.code}: {_last_line(said)}"


def _first_error(report: dict[str, Any]) -> str:
    """Return the diagnostic that represents the report: the first error, or else the first finding."""
    found = report["diagnostics"]
    errors = [diagnostic for diagnostic in found if diagnostic["severity"] == "error"] or found
    return f"{errors[0]['code']}: {errors[0]['message']}" if errors else "no diagnostic"


def _last_line(said: str) -> str:
    """Return the last line of the output, or the headline if fakexport itself failed."""
    lines = [line.strip() for line in said.splitlines() if line.strip()]
    return next((line for line in lines if _INTERNAL_FAULT in line), lines[-1] if lines else "no output")
