"""Run a module of Python in a process of its own, which is killed at a limit."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from fakexport.error import FakexportError

from .warm_start import Forked, WarmStart

_POLL_S = 0.05


class LimitsUnsupported(FakexportError, OSError):
    """This system cannot keep a limit that was asked for. One line."""


@dataclass(frozen=True)
class Limits:
    """What a process may take.

    Args:
        seconds: Time until it is killed.
        bytes: Resident memory of the process, without its children, at which it is killed; None for any.
    """

    seconds: float
    bytes: int | None = None


@dataclass(frozen=True)
class Ended:
    """How a process ended.

    Args:
        code: Its exit code, the negative number of the signal that killed it, or None at a limit.
        limit: What killed it: `"seconds"`, `"bytes"`, or `"stopped"` if the caller asked for it.
        seconds: How long it ran.
        peak_bytes: Its most resident memory, as the system counts it.
    """

    code: int | None
    limit: str | None
    seconds: float
    peak_bytes: int


def run_limited(
    module: str,
    arguments: Sequence[str],
    limits: Limits,
    *,
    stdout: BinaryIO,
    stderr: BinaryIO,
    environment: Mapping[str, str] | None = None,
    folder: Path | None = None,
    stop: threading.Event | None = None,
    warm: WarmStart | None = None,
) -> Ended:
    """Run `python -m module ALIVE arguments...` to its end, or to a limit; then its children are killed too.

    Args:
        module: Calls `end_with_parent` with its first argument, `ALIVE`, and so ends with this process.
        stdout, stderr: Files for its output.
        environment: Instead of this process's own.
        folder: Its working directory.
        stop: Once set, by any thread, the process is killed.
        warm: Starts it, in its own folder and with this process's environment.
    Raises:
        NoWarmStart: `warm` cannot start it.
        LimitsUnsupported: memory is limited, and the system does not say how much a process has.
    """
    if limits.bytes is not None and not Path("/proc/self/statm").exists():
        raise LimitsUnsupported("a limit of memory needs /proc, which this system does not have")
    alive, held = os.pipe()
    try:
        process: _Started | Forked = (
            _Started(module, alive, arguments, stdout, stderr, environment, folder)
            if warm is None
            else warm.run(module, arguments, alive=alive, stdout=stdout, stderr=stderr)
        )
        started, limit, end = time.monotonic(), None, None
        try:
            while (limit := _limit_met(process.pid, limits, started, stop)) is None:
                if (end := process.ended(is_waiting=False)) is not None:
                    break
                time.sleep(_POLL_S)
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            end = end or process.ended(is_waiting=True)
        code, peak = end or (-signal.SIGKILL, 0)
        return Ended(code if limit is None else None, limit, time.monotonic() - started, peak)
    finally:
        os.close(alive)
        os.close(held)


class _Started:
    """A run in a new process, as `Forked` is one."""

    def __init__(
        self,
        module: str,
        alive: int,
        arguments: Sequence[str],
        stdout: BinaryIO,
        stderr: BinaryIO,
        environment: Mapping[str, str] | None,
        folder: Path | None,
    ) -> None:
        # -P: what lies in the working directory must not stand in for modules of Python.
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-m", module, str(alive), *arguments],
            stdin=subprocess.DEVNULL,
            stdout=stdout,
            stderr=stderr,
            env=environment,
            cwd=folder,
            pass_fds=(alive,),
            start_new_session=True,
        )
        self.pid = self._process.pid

    def ended(self, *, is_waiting: bool) -> tuple[int, int] | None:
        ended, status, usage = os.wait4(self.pid, 0 if is_waiting else os.WNOHANG)
        if not ended:
            return None
        self._process.returncode = os.waitstatus_to_exitcode(status)
        return self._process.returncode, _bytes(usage.ru_maxrss)


def _limit_met(pid: int, limits: Limits, started: float, stop: threading.Event | None) -> str | None:
    if stop is not None and stop.is_set():
        return "stopped"
    if time.monotonic() - started > limits.seconds:
        return "seconds"
    if limits.bytes is not None and _resident_bytes(pid) > limits.bytes:
        return "bytes"
    return None


def _resident_bytes(pid: int) -> int:
    try:
        pages = Path(f"/proc/{pid}/statm").read_text().split()[1]
    except (OSError, IndexError):  # It has just ended.
        return 0
    return int(pages) * os.sysconf("SC_PAGE_SIZE")


def _bytes(ru_maxrss: int) -> int:
    return ru_maxrss if sys.platform == "darwin" else ru_maxrss * 1024
