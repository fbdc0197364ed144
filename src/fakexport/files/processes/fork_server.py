"""Import modules once, and then fork for each run: `python -m ...processes.fork_server SOCKET MODULES...`.

`WarmStart` starts this server, and documents the environment of a run. Each run has two processes: one
executes the module, and the other waits until it ends and reports its status. Linux only.
"""

from __future__ import annotations

import importlib
import json
import os
import runpy
import socket
import struct
import sys
from contextlib import suppress
from pathlib import Path

# Two messages about a run: first its process id, then its status from `os.wait4` and its peak memory in KiB.
STARTED, ENDED = struct.Struct("i"), struct.Struct("iq")
_LONGEST = 1 << 20
_OF_OPENBLAS = "OPENBLAS_NUM_THREADS"


def _serve(channel: socket.socket) -> None:
    """Fork for each request until the channel is closed. In a forked process, return after the run."""
    while True:
        with suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        asked, files, _, _ = socket.recv_fds(channel, _LONGEST, 4)
        if not asked:
            return
        if os.fork() == 0:
            channel.close()
            return _run(*files, asked=json.loads(asked))
        for file in files:
            os.close(file)


def _run(alive: int, stdout: int, stderr: int, status: int, *, asked: list[str]) -> None:
    running = os.fork()
    if running:
        os.close(alive)
        _, code, usage = os.wait4(running, 0)
        with suppress(OSError):  # The process that requested the run may have ended.
            os.write(status, ENDED.pack(code, usage.ru_maxrss))
        os._exit(0)
    os.setsid()
    os.write(status, STARTED.pack(os.getpid()))
    for file, number in ((stdout, 1), (stderr, 2)):
        os.dup2(file, number)
    for file in (stdout, stderr, status):
        os.close(file)
    if (random := sys.modules.get("numpy.random")) is not None:
        # Reseed, as in a new process. Python's own `random` reseeds by itself after a fork.
        random.seed()
    module, *arguments = asked
    sys.argv = [sys.argv[0], str(alive), *arguments]
    runpy.run_module(module, run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    _channel = socket.socket(fileno=int(sys.argv[1]))
    # OpenBLAS (in numpy and scipy) reads this variable when it is loaded, and then starts that many threads.
    _threads = os.environ.get(_OF_OPENBLAS)
    os.environ[_OF_OPENBLAS] = "1"
    for _name in sys.argv[2:]:
        importlib.import_module(_name)
    if _threads is None:
        del os.environ[_OF_OPENBLAS]
    else:
        os.environ[_OF_OPENBLAS] = _threads
    if len(list(Path("/proc/self/task").iterdir())) > 1:
        sys.exit("importing started a thread")
    _channel.send(b"ready")
    _serve(_channel)
