"""Keep libraries off the streams, and models off stdout, while they work."""

from __future__ import annotations

import inspect
import io
import logging
import sys
import warnings
from collections.abc import Iterator
from contextlib import chdir, contextmanager, redirect_stderr, redirect_stdout
from typing import TextIO

from fakexport._libraries import PACKAGES
from fakexport.cli.streams import write_error_line, write_leniently
from fakexport.diagnostics import escaped
from fakexport.error import FakexportError
from fakexport.hub import transfers_recorded

_LIBRARIES = frozenset({"torch", *PACKAGES})


@contextmanager
def quiet(*, is_debug: bool) -> Iterator[None]:
    """Send what a model prints to stderr, and drop everything that libraries print, warn and log.

    Warnings of fakexport become lines on stderr.

    torch and transformers set up their loggers again when they are imported, so a level that was set before
    would not last; disabling logging as a whole does. `torch.export` prints the graph so far when it meets a
    data-dependent branch (torch 2.13). Everything is put back afterwards, the working directory too.

    Args:
        is_debug: Drop nothing, and show what fakexport logs; stdout still goes to stderr.
    Raises:
        LittleMemoryError: there is too little memory for these libraries.
    """
    check_address_space()
    # Back to the folder of now: a model that leaves it must move no output.
    with chdir("."), _transfers_shown(), _with_libraries() if is_debug else _without_libraries():
        yield


@contextmanager
def _transfers_shown() -> Iterator[None]:
    """Say on stderr what was transferred from the hub, also where the command fails."""
    with transfers_recorded() as found:
        try:
            yield
        finally:
            if found:
                from fakexport.report import bytes_text

            for name, nbytes in found.items():
                write_error_line(
                    f"{name}: {bytes_text(nbytes)} transferred (configuration and headers, no weights)"
                )


@contextmanager
def _with_libraries() -> Iterator[None]:
    from fakexport._torch.quiet_logs import torch_logs_allowed

    with redirect_stdout(sys.stderr), torch_logs_allowed(), _own_logs_shown():
        yield


@contextmanager
def _without_libraries() -> Iterator[None]:
    before = logging.root.manager.disable
    stream = _WithoutLibraries(sys.stderr)
    with redirect_stdout(stream), redirect_stderr(stream), warnings.catch_warnings():
        warnings.simplefilter("always")
        warnings.showwarning = _show_own
        logging.disable(logging.CRITICAL)
        try:
            yield
        finally:
            logging.disable(before)


@contextmanager
def _own_logs_shown() -> Iterator[None]:
    """Show on stderr what fakexport logs about its own work."""
    logger = logging.getLogger("fakexport")
    handler = _DebugLines()
    before = logger.level
    logger.addHandler(handler)
    logger.setLevel(logging.DEBUG)
    try:
        yield
    finally:
        logger.setLevel(before)
        logger.removeHandler(handler)


class _DebugLines(logging.Handler):
    """Writes to the stderr of now, which is not the same in a forked process."""

    def emit(self, record: logging.LogRecord) -> None:
        write_error_line(f"debug: {record.getMessage()}")


def _show_own(
    message: Warning | str,
    category: type[Warning],
    filename: str,
    lineno: int,
    file: TextIO | None = None,
    line: str | None = None,
) -> None:
    if category.__module__.partition(".")[0] == "fakexport":
        write_error_line(f"warning: {escaped(str(message))}")


class _WithoutLibraries(io.TextIOBase):
    """A stream that passes on what models write and drops what library code writes."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        frame = inspect.currentframe()
        caller = None if frame is None else frame.f_back
        name = "" if caller is None else str(caller.f_globals.get("__name__", ""))
        return len(text) if name.partition(".")[0] in _LIBRARIES else write_leniently(self._stream, text)

    def in_fork(self, stream: TextIO) -> _WithoutLibraries:
        """Return what takes this one's place in a forked process."""
        return _WithoutLibraries(stream)

    def flush(self) -> None:
        self._stream.flush()

    def close(self) -> None:
        """Leave the other stream alone, which may be closed when `io` finalizes this one."""

    def isatty(self) -> bool:
        return self._stream.isatty()

    def fileno(self) -> int:
        return self._stream.fileno()


_MIB = 1 << 20
# torch and transformers map some 750 MiB, and each further processor some more.
_NEEDED_MIB = 1024


class LittleMemoryError(FakexportError, MemoryError):
    """The process may use less memory than importing torch needs. One line."""


def check_address_space() -> None:
    """Refuse to start if importing torch could not succeed (`ulimit -v`).

    Raises:
        LittleMemoryError: states the limit and what it must be.
    """
    try:
        import resource
    except ImportError:  # Windows has no such limit
        return
    limit, _ = resource.getrlimit(resource.RLIMIT_AS)
    if limit != resource.RLIM_INFINITY and limit < _NEEDED_MIB * _MIB:
        raise LittleMemoryError(
            f"out of memory: the address space is limited to {limit // _MIB} MiB, and importing "
            f"torch needs {_NEEDED_MIB} MiB: run `ulimit -v {_NEEDED_MIB * 1024}` (or more) first"
        )
