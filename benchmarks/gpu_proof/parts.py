"""Run the parts of a step, each in its own process with a time limit."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.gpu_proof.run import ROOT, Run

RECORDED = 3
"""Exit code of a part that failed and recorded the error itself."""

_running: set[subprocess.Popen[bytes]] = set()
_lock = threading.Lock()
_is_ended = threading.Event()


@dataclass(frozen=True)
class Part:
    """A function in the module of a step, called for one case.

    Args:
        step: Name of the module in this package, or of any other module if it contains a dot.
        name: Name of the function in its `PARTS`.
        case: Argument of the function.
        is_hidden: Whether to hide the GPU.
        limit_s: Seconds after which the process is killed.
        threads: Value of `OMP_NUM_THREADS`.
    """

    step: str
    name: str
    case: str = ""
    is_hidden: bool = False
    limit_s: float = 280.0
    threads: int = 2


@dataclass(frozen=True)
class Process:
    """A running part."""

    run: Run
    part: Part
    child: subprocess.Popen[bytes]
    log: Path

    def end(self) -> bool:
        """Wait until the part ends. If it fails or exceeds its limit, record this and return False."""
        limit = min(self.part.limit_s * self.run.scale, max(self.run.left_s(), 1.0))
        try:
            code = self.child.wait(limit)
        except subprocess.TimeoutExpired:
            self._fail(f"stopped after {limit:.0f} s")
            return False
        finally:
            _kill(self.child)
        if code not in (0, RECORDED):
            self._fail(
                "stopped with the run" if _is_ended.is_set() else f"the process ended with exit code {code}"
            )
        return code == 0

    def go(self) -> None:
        """Let the part continue after `turn`."""
        assert self.child.stdin is not None
        self.child.stdin.close()

    def _fail(self, error: str) -> None:
        tail = self.log.read_text(errors="replace")[-2000:]
        part = self.part
        self.run.record(part.step, part.case or part.name, part=part.name, error=error, output=tail)


def turn() -> None:
    """Wait until the runner gives this part exclusive use of the GPU. Return at once if it need not wait."""
    sys.stdin.read()


def start(run: Run, part: Part, *, is_waiting: bool = False) -> Process:
    """Start a part.

    Args:
        is_waiting: Whether the part waits in `turn` until `Process.go` is called.
    """
    environment = {
        **os.environ,
        "PYTHONPATH": f"{ROOT / 'src'}{os.pathsep}{ROOT}",
        "PYTHONUNBUFFERED": "1",
        "PYTHONFAULTHANDLER": "1",  # The stack of a process that a signal ends is in its log.
        "HF_HUB_OFFLINE": "1",
        "TRANSFORMERS_OFFLINE": "1",
        "OMP_NUM_THREADS": str(part.threads),
    }
    if part.is_hidden or run.is_pretend:
        environment["CUDA_VISIBLE_DEVICES"] = ""
    log = run.work / "logs" / f"{part.step}-{part.name}-{part.case}.txt"
    log.parent.mkdir(parents=True, exist_ok=True)
    command = [run.python or sys.executable, "-m", "benchmarks.gpu_proof.part"]
    with log.open("wb") as file:
        child = subprocess.Popen(
            [*command, part.step, part.name, part.case, run.to_json()],
            cwd=ROOT,
            env=environment,
            stdin=subprocess.PIPE if is_waiting else subprocess.DEVNULL,
            stdout=file,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    with _lock:
        _running.add(child)
    if _is_ended.is_set():
        _kill(child)
    return Process(run, part, child, log)


def run_part(run: Run, part: Part) -> bool:
    """Run a part and return whether it succeeded. If no time is left, record that it did not run."""
    if not _has_time(run, part):
        return False
    return start(run, part).end()


def run_parts(
    run: Run, parts: Sequence[Part], *, jobs: int | None = None, then: Callable[[Part], Any] | None = None
) -> None:
    """Run parts in parallel.

    Args:
        jobs: Number of parts at a time. Default: `run.jobs`.
        then: Called after each part, in the thread of the part. Calls do not overlap.
    """
    ended = threading.Lock()

    def one(part: Part) -> None:
        run_part(run, part)
        if then is not None:
            with ended:
                then(part)

    with ThreadPoolExecutor(jobs or run.jobs) as pool:
        for result in [pool.submit(one, part) for part in parts]:
            result.result()


def run_in_turn(run: Run, parts: Sequence[Part], *, ahead: int = 4) -> None:
    """Run parts so that one at a time uses the GPU. The next `ahead` parts start early and wait in `turn`."""
    left, started = deque(parts), deque[Process]()
    while left or started:
        while left and len(started) < ahead:
            part = left.popleft()
            if _has_time(run, part):
                started.append(start(run, part, is_waiting=True))
        if started:
            process = started.popleft()
            process.go()
            process.end()


def _has_time(run: Run, part: Part) -> bool:
    if run.left_s() > 0 and not _is_ended.is_set():
        return True
    run.record(part.step, part.case or part.name, part=part.name, error="did not run: no time was left")
    return False


def end_all() -> None:
    """Kill the running parts, and start no more parts."""
    _is_ended.set()
    with _lock:
        left = list(_running)
    for child in left:
        _kill(child)


def _kill(child: subprocess.Popen[bytes]) -> None:
    """Kill a part and its child processes, and wait for its end."""
    with _lock:
        if child not in _running:
            return
        _running.discard(child)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(child.pid, signal.SIGKILL)
    child.wait()
