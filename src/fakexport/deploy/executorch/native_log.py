"""Capture log output that native code writes to stderr."""

from __future__ import annotations

import contextlib
import io
import os
import re
import tempfile
from collections.abc import Iterator

_STDERR = 2
_WHERE = ("arg ", "    ", "KernelCall failed")
_CALL = re.compile(r"KernelCall failed at instruction 0:(?P<index>\d+) in operator ")


class NativeLog:
    """The captured lines. They are set when the `native_log` block ends."""

    def __init__(self) -> None:
        self.lines: tuple[str, ...] = ()

    @property
    def reasons(self) -> tuple[str, ...]:
        """The captured lines about the call, without positions in ExecuTorch's source code."""
        lines = (line for line in self.lines if not line.startswith("[cpuinfo"))
        texts = (line.partition("] ")[2] if line.startswith("[") else line for line in lines)
        return tuple(
            text.strip().rstrip(":. ") for text in texts if text.strip() and not text.startswith(_WHERE)
        )

    @property
    def failed_instruction(self) -> int | None:
        """Index of the failed kernel call among the instructions of the method. None if no call failed."""
        found = next(filter(None, map(_CALL.search, self.lines)), None)
        return None if found is None else int(found["index"])


@contextlib.contextmanager
def native_log() -> Iterator[NativeLog]:
    """Capture the log of ExecuTorch's runtime, because only the log says why a call failed.

    The runtime writes to the file descriptor of stderr when it is loaded, and to `sys.stderr` during a call.
    Both belong to the whole process, so do not use this context for calls that are expected to succeed.
    """
    log, stream = NativeLog(), io.StringIO()
    with tempfile.TemporaryFile() as file:
        kept = os.dup(_STDERR)
        try:
            os.dup2(file.fileno(), _STDERR)
            with contextlib.redirect_stderr(stream):
                yield log
        finally:
            os.dup2(kept, _STDERR)
            os.close(kept)
            file.seek(0)
            written = file.read().decode(errors="replace")
            log.lines = (*written.splitlines(), *stream.getvalue().splitlines())
