"""The two streams: data on stdout, everything else on stderr."""

from __future__ import annotations

import errno
import io
import os
import re
import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TextIO, cast

from fakexport.cli.color import highlighted
from fakexport.diagnostics import escaped, escaped_lines
from fakexport.error import FakexportError

_WIDTH_OF_A_FILE = 100
_COMMAND = re.compile(r"(?m)^([ \t]*)::")


class OutputError(FakexportError, OSError):
    """The output could not be printed. One line."""

    def __init__(self, cause: OSError) -> None:
        super().__init__(f"cannot write to stdout: {cause.strerror or cause}")


def write_output(text: str) -> None:
    """Write text to stdout with non-printable characters escaped: some of it comes from a model or a file.

    Raises:
        BrokenPipeError: the reader has gone.
        OutputError: the disk is full, or stdout is closed.
    """
    with _output_faults():
        sys.stdout.write(_shown(text))


def write_report(text: str) -> None:
    """Write text for people to stdout as `write_output` does, in color where stdout is colored."""
    with _output_faults():
        sys.stdout.write(highlighted(_shown(text), sys.stdout))


def write_formatted(text: str, output_format: str) -> None:
    """Write what a command prints in this format: `text` is for people, `github` has commands."""
    if output_format == "github":
        with _output_faults():
            sys.stdout.write(_shown(text, has_commands=True))
    else:
        (write_report if output_format == "text" else write_output)(text)


def flush_output() -> None:
    """Write what is buffered; raises as `write_output` does."""
    with _output_faults():
        sys.stdout.flush()


def write_error_line(text: str) -> None:
    """Write text, escaped in the same way, and a line end to stderr, as far as that is possible."""
    write_leniently(sys.stderr, f"{highlighted(_shown(text), sys.stderr)}\n")


def write_leniently(stream: TextIO, text: str) -> int:
    """Write text to stderr, or drop it if that fails: nothing can be reported, and the work goes on."""
    try:
        stream.write(text)
        stream.flush()
    except OSError:
        _abandon(stream)
    return len(text)


def write_note(sentence: str) -> None:
    """Write `note: SENTENCE` to stderr, as one line whatever it contains."""
    write_error_line(f"note: {escaped(sentence)}")


def output_width() -> int:
    """Return the terminal width of stdout; 100 for a file or a pipe, so that the text is always the same."""
    return shutil.get_terminal_size().columns if sys.stdout.isatty() else _WIDTH_OF_A_FILE


@contextmanager
def standard_streams() -> Iterator[None]:
    """Make both streams usable in the block, even if one was closed, so that no file gets its number.

    Characters outside a stream's encoding are escaped instead of failing.
    """
    before = sys.stdout, sys.stderr
    _occupy_closed_descriptors()
    sys.stdout = cast("TextIO", _Closed()) if sys.stdout is None else sys.stdout
    with Path(os.devnull).open("w") as nowhere:
        sys.stderr = nowhere if sys.stderr is None else sys.stderr
        for stream in (sys.stdout, sys.stderr):
            if isinstance(stream, io.TextIOWrapper):
                stream.reconfigure(errors="backslashreplace")
        try:
            yield
        finally:
            sys.stdout, sys.stderr = before


class _Closed(io.TextIOBase):
    """Stands for a closed stdout, which is None in Python."""

    def write(self, text: str) -> int:
        raise OSError(errno.EBADF, "the stream is closed")


@contextmanager
def _output_faults() -> Iterator[None]:
    try:
        yield
    except OSError as error:
        _abandon(sys.stdout)
        if isinstance(error, BrokenPipeError):
            raise
        raise OutputError(error) from error


def _abandon(stream: TextIO) -> None:
    """Point a stream to nowhere: the interpreter would fail again when it flushes at exit."""
    with suppress(OSError, ValueError):
        number, nowhere = stream.fileno(), os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, number)
        os.close(nowhere)


def _occupy_closed_descriptors() -> None:
    """Open the closed descriptors, or the next opened file would get a stream's number."""
    for number in (0, 1, 2):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)


def _shown(text: str, *, has_commands: bool = False) -> str:
    """Return text with escapes, and without lines that GitHub's runner takes for workflow commands.

    The escapes of these are also those of JSON, where the second kind may be part of a string.

    Args:
        text: The text.
        has_commands: Whether lines that begin with `::` are ours.
    Source: `ActionCommand.TryParseV2` and `TryParse` of actions/runner: a line that begins with `::`, and
        `##[` anywhere.
    """
    lines = escaped_lines(text)
    shown = lines if has_commands else _COMMAND.sub(r"\1\\u003a:", lines)
    return shown.replace("##[", r"#\u0023[")
