"""What a forked process writes to its streams, for the process that forked it."""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import IO, Protocol, TextIO


class ForkedStream(Protocol):
    """A replacement of `sys.stdout` or `sys.stderr` that a forked process replaces too."""

    def in_fork(self, stream: TextIO) -> TextIO:
        """Return what takes its place in a forked process; `stream` writes to the process's descriptor."""


class ForkedOutput:
    """Two files: what a forked process writes to descriptors 1 and 2, from Python and native code."""

    def __init__(self) -> None:
        self._files = tempfile.TemporaryFile(), tempfile.TemporaryFile()  # noqa: SIM115 (see `close`)

    def take_over(self) -> None:
        """In the forked process: write to the files from now on, and read nothing.

        The streams are new objects: another thread may have locked the old ones when the process was forked.
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
        """Write what was written to the streams of this process, and return it."""
        written = [_content(file) for file in self._files]
        for stream, text in zip((sys.stdout, sys.stderr), written, strict=True):
            if text and stream is not None:
                stream.write(text)
                stream.flush()
        return "".join(written)

    def close(self) -> None:
        """Close the files, which have no names."""
        for file in self._files:
            file.close()


def _content(file: IO[bytes]) -> str:
    file.seek(0)
    return file.read().decode(errors="replace")


def own_flush() -> Callable[[], None]:
    """Return what flushes the streams of now, even if user code replaces them."""
    return partial(_flush, sys.stdout, sys.stderr)


def flush_streams() -> None:
    """Write what is buffered, which a forked process would write again."""
    _flush(sys.stdout, sys.stderr)


def _flush(*streams: TextIO | None) -> None:
    for stream in streams:
        with suppress(Exception):
            if stream is not None:
                stream.flush()
