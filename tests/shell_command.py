"""`fakexport` as an executable for shell commands: each run is forked from a process that has the imports.

Pipes, redirections, exit codes and the working directory are those of the shell. Only the interpreter is not
started from nothing, which takes longer than most commands.
"""

from __future__ import annotations

import json
import os
import socket
import sys
import threading
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from multiprocessing.reduction import DupFd
from pathlib import Path
from typing import Any

from tests.forked import forking, run_as_interpreter

__all__ = ["fakexport_command"]

# Hands over its arguments, folder, environment and streams, and ends as the process that was forked for it.
_CLIENT = """
import json, os, socket, struct, sys

request = json.dumps([sys.argv[1:], os.getcwd(), dict(os.environ)]).encode()
with socket.socket(socket.AF_UNIX) as server:
    server.connect({address!r})
    socket.send_fds(server, [struct.pack("=Q", len(request))], [0, 1, 2])
    server.sendall(request)
    os._exit(server.recv(1)[0])
"""


@contextmanager
def fakexport_command(path: Path) -> Iterator[None]:
    """Inside the block, the file is an executable that does what `python -m fakexport` does."""
    client, address = (
        path.with_suffix(".py"),
        f"\0{uuid.uuid4()}",
    )  # It is in no folder: paths may be too long.
    is_forked = sys.platform == "linux"
    how = f'-IS "{client}"' if is_forked else "-m fakexport"
    path.write_text(f'#!/bin/sh\nexec "{sys.executable}" {how} "$@"\n', encoding="utf-8")
    path.chmod(0o755)
    if not is_forked:
        yield
        return
    client.write_text(_CLIENT.format(address=address), encoding="utf-8")
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(address)
        server.listen()
        threading.Thread(target=_serve, args=(server,), daemon=True).start()
        try:
            yield
        finally:
            server.shutdown(socket.SHUT_RDWR)


def _serve(server: socket.socket) -> None:
    with suppress(OSError):  # It was shut down.
        while True:
            threading.Thread(target=_answer, args=(server.accept()[0],), daemon=True).start()


def _answer(client: socket.socket) -> None:
    with client:
        size, streams, _, _ = socket.recv_fds(client, 8, 3)
        with client.makefile("rb") as file:
            arguments, folder, environment = json.loads(file.read(int.from_bytes(size, sys.byteorder)))
        process = forking().Process(target=_run, args=(arguments, folder, environment, _Streams(streams)))
        process.start()
        for stream in streams:
            os.close(stream)
        process.join()
        code = process.exitcode or 0
        client.sendall(bytes([code if code >= 0 else 128 - code]))


class _Streams:
    """Descriptors that a process gets as it starts."""

    def __init__(self, descriptors: list[int]) -> None:
        self.descriptors = descriptors

    def __reduce__(self) -> tuple[Any, ...]:
        return _received, tuple(map(DupFd, self.descriptors))


def _received(*descriptors: Any) -> list[int]:
    return [descriptor.detach() for descriptor in descriptors]


def _run(arguments: list[str], folder: str, environment: dict[str, str], streams: list[int]) -> None:
    for number, stream in enumerate(streams):
        os.dup2(stream, number)
        os.close(stream)
    # Those that are there are of the process that was forked from.
    sys.stdin, sys.stdout = open(0, closefd=False), open(1, "w", closefd=False)  # noqa: SIM115
    sys.stderr = open(2, "w", 1, errors="backslashreplace", closefd=False)  # noqa: SIM115
    run_as_interpreter(["-m", "fakexport", *arguments], Path(folder), environment)
