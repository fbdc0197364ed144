"""Start the processes of the benchmark and collect their results."""

from __future__ import annotations

import os
import signal
from pathlib import Path

from fakexport.processes import Limits, run_limited
from fakexport.report import BenchFailure

from .outcome import Outcome

_MODULE = "fakexport.benchmark.worker"


def run_part(
    folder: Path, part: str, mode: str = "", *, timeout_s: float
) -> tuple[Outcome, BenchFailure | None]:
    """Run one part of the benchmark in a process of its own, which ends when this one ends.

    Args:
        folder: Folder of the benchmark; the process's output goes to `PART-MODE.log` there.
        part, mode: As for the worker.
        timeout_s: Time limit for the process and its children.
    Returns:
        Its outcome, and why it ended early, if it did.
    """
    log = folder / f"{part}-{mode}.log"
    # Else a compilation would be as short as what was compiled before lets it be.
    environment = {**os.environ, "TORCHINDUCTOR_CACHE_DIR": str(folder / f"{part}-{mode}.cache")}
    code = _exit_code([str(folder), part, mode], log, environment, timeout_s)
    outcome = Outcome(folder / f"{part}-{mode}.json")
    if code == 0:
        return outcome, None
    step = outcome.step or ("make" if part == "make" else "load")
    return outcome, BenchFailure(step, _why(code, timeout_s, log))


def _exit_code(arguments: list[str], log: Path, environment: dict[str, str], timeout_s: float) -> int | None:
    """Return a worker's exit code, the negative signal number if killed; None after the time limit."""
    with log.open("wb") as output:
        limits = Limits(timeout_s)
        ended = run_limited(_MODULE, arguments, limits, stdout=output, stderr=output, environment=environment)
    return ended.code


def _why(code: int | None, timeout_s: float, log: Path) -> str:
    if code is None:
        return f"timed out after {timeout_s:g} s"
    if code < 0:
        name = signal.Signals(-code).name
        return f"the process was killed by {name}" + (", possibly out of memory" if name == "SIGKILL" else "")
    lines = log.read_text(errors="replace").splitlines()
    last = next((line.strip() for line in reversed(lines) if line.strip()), "no output")
    return f"the process exited with code {code}: {last}"
