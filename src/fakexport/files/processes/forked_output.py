"""Capture the output of a forked process for its parent process."""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import IO, TextIO


class ForkedOutput:
    """Two files that capture what a forked process, also its native code, writes to stdout and stderr."""

    def __init__(self) -> None:
        self._files = tempfile.TemporaryFile(), tempfile.TemporaryFile()  # noqa: SIM115 (see `close`)

    def take_over(self) -> None:
        """In the forked process: redirect output to the files, and make stdin empty.

        The streams are new objects, because another thread may have locked the old streams during the fork.
        """
        nothing = os.open(os.devnull, os.O_RDONLY)
        os.dup2(nothing, 0)
        os.close(nothing)
        sys.stdin = open(0, closefd=False)  # noqa: SIM115
        for number, name, file in zip((1, 2), ("stdout", "stderr"), self._files, strict=True):
            os.dup2(file.fileno(), number)
            own = open(  # noqa: SIM115
                number, "w", buffering=1, encoding="utf-8", errors="backslashreplace", closefd=False
            )
            setattr(sys, f"__{name}__", own)
            before = getattr(sys, name)
            setattr(sys, name, before.in_fork(own) if hasattr(before, "in_fork") else own)

    def replay(self) -> str:
        """Write the captured output to this process's streams, and return it."""
        written = [_content(file) for file in self._files]
        for stream, text in zip((sys.stdout, sys.stderr), written, strict=True):
            if text and stream is not None:
                stream.write(text)
                stream.flush()
        return "".join(written)

    def close(self) -> None:
        """Close the files. They have no names, so this deletes them."""
        for file in self._files:
            file.close()


def _content(file: IO[bytes]) -> str:
    file.seek(0)
    return file.read().decode(errors="replace")


def own_flush() -> Callable[[], None]:
    """Return a function that flushes the current stdout and stderr, even after they are replaced."""
    return partial(_flush, sys.stdout, sys.stderr)


def flush_streams() -> None:
    """Flush the streams before a fork. Otherwise, the forked process would also write their buffers."""
    _flush(sys.stdout, sys.stderr)


def _flush(*streams: TextIO | None) -> None:
    for stream in streams:
        with suppress(Exception):
            if stream is not None:
                stream.flush()
