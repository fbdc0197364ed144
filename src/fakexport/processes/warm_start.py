"""A process that is forked for each run, so that what all of them import is imported once."""

from __future__ import annotations

import json
import os
import select
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import BinaryIO

from fakexport.error import FakexportError

from .fork_server import ENDED, STARTED


class NoWarmStart(FakexportError, OSError):
    """Runs cannot start from a process that has imported the modules. One line."""


class Forked:
    """A run in a process that was forked; `pid` is that of its session too."""

    def __init__(self, pid: int, status: BinaryIO) -> None:
        self.pid = pid
        self._status = status

    def ended(self, *, is_waiting: bool) -> tuple[int, int] | None:
        """Return the exit code, or the negative number of the signal, and its peak memory in bytes.

        None where it still runs; with `is_waiting` the end is waited for.
        """
        if not is_waiting and not select.select([self._status], [], [], 0)[0]:
            return None
        with self._status:
            found = self._status.read(ENDED.size)
        if len(found) < ENDED.size:  # The process that waits for it was killed.
            return -signal.SIGKILL, 0
        status, peak_kib = ENDED.unpack(found)
        return os.waitstatus_to_exitcode(status), peak_kib * 1024


class WarmStart:
    """Starts runs with modules that are imported already; for several threads. Linux only.

    A run finds what a process of its own would find after importing them: its own session, files, working
    directory, arguments and `__main__`. What it changes, no other run sees. The process that is forked starts
    with the first run. `close` ends it; runs that have started go on.

    Args:
        modules: What each run would import itself, before it does anything else. One that starts a thread
            is refused: a fork would not have it.
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
        """Run a module as `run_limited` does.

        Raises:
            NoWarmStart: this system has no `/proc`, the modules cannot be imported, or the process that is
                forked was killed. Each later call raises it too.
        """
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
                    raise self._failed("the process that is forked for each check has ended") from error
        except BaseException:
            status.close()
            raise
        finally:
            os.close(theirs)
        pid = status.read(STARTED.size)
        if len(pid) < STARTED.size:
            status.close()
            with self._lock:
                raise self._failed("the process that is forked for each check could not be forked")
        return Forked(STARTED.unpack(pid)[0], status)

    def close(self) -> None:
        """End the process that is forked. Runs are refused from then on."""
        with self._lock:
            self._reason = self._reason or "it is closed"
            if self._channel is not None:
                self._channel.close()
            if self._server is not None:
                self._server.wait()

    def _started(self) -> socket.socket:
        if self._reason is not None:
            raise NoWarmStart(self._reason)
        if self._channel is None:
            if sys.platform != "linux":
                raise self._failed("this system is not Linux")
            self._channel, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            with theirs, tempfile.TemporaryFile() as said:
                server = (sys.executable, "-P", "-m", "fakexport.processes.fork_server")
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
                    raise self._failed(f"{', '.join(self._modules)} cannot be imported once for all: {told}")
        return self._channel

    def _failed(self, reason: str) -> NoWarmStart:
        self._reason = reason
        return NoWarmStart(reason)
