"""Starting the processes of the benchmark, and what became of them."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from pathlib import Path

from fakexport.report import BenchFailure

from .outcome import Outcome

__all__ = ["run_part"]

_MODULE = "fakexport.deploy.bench.worker"


def run_part(
    folder: Path, part: str, mode: str = "", *, timeout_s: float
) -> tuple[Outcome, BenchFailure | None]:
    """One part of the benchmark in a process of its own.

    Args:
        folder: Of the benchmark; the process's outputs go to `PART-MODE.log` there.
        part, mode: As the worker takes them.
        timeout_s: When the process and all that it started are ended.
    Returns:
        What it left, and why it ended before its time, if it did.
    """
    log = folder / f"{part}-{mode}.log"
    # Else a compilation would be as short as what was compiled before lets it be.
    environment = {**os.environ, "TORCHINDUCTOR_CACHE_DIR": str(folder / f"{part}-{mode}.cache")}
    # -P: what lies in the working directory must not stand in for modules of Python.
    command = [sys.executable, "-P", "-m", _MODULE, str(folder), part, mode]
    with log.open("wb") as output:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            env=environment,
            start_new_session=True,
        )
        try:
            code = process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            code = None
        finally:
            _end(process)
    outcome = Outcome(folder / f"{part}-{mode}.json")
    if code == 0:
        return outcome, None
    step = outcome.step or ("make" if part == "make" else "load")
    return outcome, BenchFailure(step, _why(code, timeout_s, log))


def _end(process: subprocess.Popen[bytes]) -> None:
    """Ends the process and those that it started, compilers for example; nothing where all have ended."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def _why(code: int | None, timeout_s: float, log: Path) -> str:
    if code is None:
        return f"not done after {timeout_s:g} s"
    if code < 0:
        name = signal.Signals(-code).name
        return f"the process was ended by {name}" + (", for want of memory?" if name == "SIGKILL" else "")
    lines = log.read_text(errors="replace").splitlines()
    last = next((line.strip() for line in reversed(lines) if line.strip()), "it says nothing")
    return f"the process ended with code {code}: {last}"
