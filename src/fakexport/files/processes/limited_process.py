"""Run a Python module in its own process, and kill the process if it exceeds a limit."""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from fakexport.error import FakexportError
from fakexport.files.processes.fork_server import ENDED, STARTED

_POLL_S = 0.05


class LimitsUnsupported(FakexportError, OSError):
    """This system cannot enforce a requested limit. The message is a single line."""


@dataclass(frozen=True)
class Limits:
    """Limits of a process.

    Args:
        seconds: Run time after which the process is killed.
        bytes: Resident memory above which the process is killed; None for no limit. The memory of its child
            processes does not count.
    """

    seconds: float
    bytes: int | None = None


@dataclass(frozen=True)
class Ended:
    """How a process ended.

    Args:
        code: The exit code, the negative number of the signal that killed it, or None if `limit` is set.
        limit: The limit that the process exceeded, `"seconds"` or `"bytes"`; `"stopped"` if the caller
            stopped it; None if it ended by itself.
        seconds: Run time in seconds.
        peak_bytes: Peak resident memory in bytes, as reported by the system.
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
    """Run `python -m module ALIVE arguments...` until it ends or exceeds a limit. Then kill its children.

    Args:
        module: The module. It must call `end_with_parent` with its first argument, `ALIVE`, so that it ends
            when this process ends.
        stdout, stderr: Files for the output.
        environment: Environment of the process. Default: the environment of this process.
        folder: Working directory of the process.
        stop: Event that any thread can set to kill the process.
        warm: If given, the process is forked from the server process of `warm`, and runs in the folder of
            `warm`. `environment` and `folder` are then ignored.

    Raises:
        NoWarmStart: `warm` cannot start the process.
        LimitsUnsupported: Memory is limited, but the system does not report the memory of processes.
    """
    if limits.bytes is not None and not Path("/proc/self/statm").exists():
        raise LimitsUnsupported("a memory limit needs /proc, which this system does not have")
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
    """A run in a new process, with the interface of `Forked`."""

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
        # -P: files in the working directory must not shadow Python modules.
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
    except (OSError, IndexError):  # The process has just ended.
        return 0
    return int(pages) * os.sysconf("SC_PAGE_SIZE")


def _bytes(ru_maxrss: int) -> int:
    return ru_maxrss if sys.platform == "darwin" else ru_maxrss * 1024


class NoWarmStart(FakexportError, OSError):
    """A run cannot be forked from the server process of a `WarmStart`. The message is a single line."""


class Forked:
    """A run in a forked process. `pid` is also the id of its session."""

    def __init__(self, pid: int, status: BinaryIO) -> None:
        self.pid = pid
        self._status = status

    def ended(self, *, is_waiting: bool) -> tuple[int, int] | None:
        """Return the exit code (or the negative signal number) and the peak memory in bytes.

        Return None if the process is still running. If `is_waiting`, wait until it has ended.
        """
        if not is_waiting and not select.select([self._status], [], [], 0)[0]:
            return None
        with self._status:
            found = self._status.read(ENDED.size)
        if len(found) < ENDED.size:  # The process that waits for the run was killed.
            return -signal.SIGKILL, 0
        status, peak_kib = ENDED.unpack(found)
        return os.waitstatus_to_exitcode(status), peak_kib * 1024


class WarmStart:
    """Start runs in which modules are already imported. This class is thread-safe. It works only on Linux.

    A run is like a new process that has imported the modules: it has its own session, files, working
    directory, arguments and `__main__`. Changes that a run makes do not affect other runs. The first run
    starts a server process, from which all runs are forked. `close` ends the server, but not the runs.

    Args:
        modules: Modules to import before the runs. If importing a module starts a thread, an error is raised,
            because a fork does not copy threads.
        folder: The working directory of the runs.
    """

    def __init__(self, modules: Sequence[str], folder: Path) -> None:
        self._modules, self._folder = modules, folder
        self._lock = threading.Lock()
        self._channel: socket.socket | None = None
        self._server: subprocess.Popen[bytes] | None = None
        self._reason: str | None = None

    def run(
        self, module: str, arguments: Sequence[str], *, alive: int, stdout: BinaryIO, stderr: BinaryIO
    ) -> Forked:
        """Run a module like `run_limited`. If a run cannot be started, all later calls raise an error."""
        mine, theirs = os.pipe()
        status = os.fdopen(mine, "rb", buffering=0)
        try:
            with self._lock:
                channel = self._started()
                asked = json.dumps([module, *arguments]).encode()
                files = [alive, stdout.fileno(), stderr.fileno(), theirs]
                try:
                    socket.send_fds(channel, [asked], files)
                except OSError as error:
                    raise self._failed(
                        "the server process that forks a process for each check has ended"
                    ) from error
        except BaseException:
            status.close()
            raise
        finally:
            os.close(theirs)
        pid = status.read(STARTED.size)
        if len(pid) < STARTED.size:
            status.close()
            with self._lock:
                raise self._failed("could not fork a process for the check")
        return Forked(STARTED.unpack(pid)[0], status)

    def close(self) -> None:
        """Kill the server process, also while it imports the modules. Later runs raise an error."""
        if self._server is not None:
            self._server.kill()  # A run that waits for the server in another thread has the lock.
        with self._lock:
            self._reason = self._reason or "it is closed"
            if self._channel is not None:
                self._channel.close()
            if self._server is not None:
                self._server.kill()
                self._server.wait()

    def _started(self) -> socket.socket:
        if self._reason is not None:
            raise NoWarmStart(self._reason)
        if self._channel is None:
            if sys.platform != "linux":
                raise self._failed("this system is not Linux")
            self._channel, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            with theirs, tempfile.TemporaryFile() as said:
                server = (sys.executable, "-P", "-m", "fakexport.files.processes.fork_server")
                self._server = subprocess.Popen(
                    [*server, str(theirs.fileno()), *self._modules],
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.DEVNULL,
                    stderr=said,
                    cwd=self._folder,
                    pass_fds=(theirs.fileno(),),
                    start_new_session=True,
                )
                theirs.close()
                if not self._channel.recv(16):
                    said.seek(0)
                    lines = said.read().decode(errors="replace").split("\n")
                    told = next((line for line in reversed(lines) if line.strip()), "no reason given")
                    raise self._failed(
                        f"the modules {', '.join(self._modules)} cannot be imported once for all runs: {told}"
                    )
        return self._channel

    def _failed(self, reason: str) -> NoWarmStart:
        self._reason = reason
        return NoWarmStart(reason)
