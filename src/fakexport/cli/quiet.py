"""Suppress the output of libraries, and redirect the output of models to stderr."""

from __future__ import annotations

import inspect
import io
import logging
import sys
import warnings
from collections.abc import Iterator
from contextlib import chdir, contextmanager, redirect_stderr, redirect_stdout
from typing import TextIO

from fakexport.cli.streams import write_error_line, write_leniently
from fakexport.error import FakexportError
from fakexport.files import escaped
from fakexport.models import PACKAGES
from fakexport.models.hub import transfers_recorded

_LIBRARIES = frozenset({"torch", *PACKAGES})


@contextmanager
def quiet(*, is_debug: bool) -> Iterator[None]:
    """Redirect the output of models to stderr, and drop output, warnings and logs of libraries.

    Each warning of fakexport is written to stderr as one line.

    Logging is disabled as a whole, because torch and transformers reset the levels of their loggers when they
    are imported. `torch.export` prints the incomplete graph at a data-dependent branch (torch 2.13).
    Everything is restored afterwards, including the working directory.

    Args:
        is_debug: Whether to drop nothing and show fakexport's own log. The output of models is redirected to
            stderr in either case.
    Raises:
        LittleMemoryError: there is too little memory to import torch.
    """
    check_address_space()
    # A model may change the working directory. Restore it, so that output files are not misplaced.
    with chdir("."), _transfers_shown(), _with_libraries() if is_debug else _without_libraries():
        yield


@contextmanager
def _transfers_shown() -> Iterator[None]:
    """Print on stderr how many bytes were transferred from the hub, even if the command fails."""
    with transfers_recorded() as found:
        try:
            yield
        finally:
            if found:
                from fakexport.report import bytes_text

            for name, nbytes in found.items():
                write_error_line(
                    f"{name}: {bytes_text(nbytes)} downloaded (configuration and headers, no weights)"
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
    """Write log records to the current `sys.stderr`, which a forked process replaces."""

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
    """A stream that forwards the output of models and drops the output of library code."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        frame = inspect.currentframe()
        caller = None if frame is None else frame.f_back
        name = "" if caller is None else str(caller.f_globals.get("__name__", ""))
        return len(text) if name.partition(".")[0] in _LIBRARIES else write_leniently(self._stream, text)

    def in_fork(self, stream: TextIO) -> _WithoutLibraries:
        """Return the stream that replaces this stream in a forked process."""
        return _WithoutLibraries(stream)

    def flush(self) -> None:
        self._stream.flush()

    def close(self) -> None:
        """Do nothing. `io` calls this method at finalization, when the wrapped stream may be closed."""

    def isatty(self) -> bool:
        return self._stream.isatty()

    def fileno(self) -> int:
        return self._stream.fileno()


_MIB = 1 << 20
# Importing torch and transformers maps about 750 MiB of address space, more with more processors.
_NEEDED_MIB = 1024


class LittleMemoryError(FakexportError, MemoryError):
    """The address space limit is too low to import torch. The text is one line."""


def check_address_space() -> None:
    """Raise a `LittleMemoryError` if the limit of `ulimit -v` is too low to import torch."""
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
