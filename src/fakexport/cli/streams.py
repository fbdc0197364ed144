"""Write data to stdout, and everything else to stderr."""

from __future__ import annotations

import errno
import io
import os
import re
import shutil
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn, TextIO, cast

import typer

from fakexport.cli.color import highlighted
from fakexport.error import FakexportError
from fakexport.files import escaped, escaped_lines

if TYPE_CHECKING:
    from fakexport.rules.diagnostics import Diagnostic

WIDTH_OF_A_FILE = 100
_COMMAND = re.compile(r"(?m)^([ \t]*)::")


class OutputError(FakexportError, OSError):
    """The output could not be printed. The message is a single line."""

    def __init__(self, cause: OSError) -> None:
        super().__init__(f"cannot write to stdout: {cause.strerror or cause}")


def write_output(text: str) -> None:
    """Write text to stdout. Non-printable characters, which models and files may contain, are escaped.

    Raises:
        BrokenPipeError: the reader has closed the pipe.
        OutputError: the disk is full, or stdout is closed.
    """
    with _output_faults():
        sys.stdout.write(_shown(text))


def write_report(text: str) -> None:
    """Write text for people to stdout like `write_output`, in color if stdout is colored."""
    with _output_faults():
        sys.stdout.write(highlighted(_shown(text), sys.stdout))


def write_formatted(text: str, output_format: str) -> None:
    """Write a command's output. Text may be colored, and the format `github` may have workflow commands."""
    if output_format == "github":
        with _output_faults():
            sys.stdout.write(_shown(text, has_commands=True))
    else:
        (write_report if output_format == "text" else write_output)(text)


def flush_output() -> None:
    """Flush stdout. Raises the same errors as `write_output`."""
    with _output_faults():
        sys.stdout.flush()


def write_error_line(text: str) -> None:
    """Write escaped text and a line end to stderr, or drop it if that fails."""
    write_leniently(sys.stderr, f"{highlighted(_shown(text), sys.stderr)}\n")


def write_leniently(stream: TextIO, text: str) -> int:
    """Write text to stderr. If that fails, drop the text and continue, because no one could see an error."""
    try:
        stream.write(text)
        stream.flush()
    except OSError:
        _abandon(stream)
    return len(text)


def write_note(sentence: str) -> None:
    """Write `note: SENTENCE` to stderr as one line; line breaks are escaped."""
    write_error_line(f"note: {escaped(sentence)}")


def write_found(found: Any, output_format: str, render: Callable[[Any], str]) -> None:
    """Write a command's result: as JSON or, if the format is `text`, as the text that `render` returns."""
    from fakexport.report import json_text, to_dict

    write_output(json_text(to_dict(found)) if output_format == "json" else render(found))


def write_failed(found: Sequence[Diagnostic]) -> NoReturn:
    """Print the diagnostics of a failed command, and exit with code 1."""
    from fakexport.report import render_diagnostics

    write_report(render_diagnostics(found))
    raise typer.Exit(1)


def output_width() -> int:
    """Return the terminal width of stdout; for a file or pipe, return 100, so that output is reproducible."""
    return shutil.get_terminal_size().columns if sys.stdout.isatty() else WIDTH_OF_A_FILE


@contextmanager
def standard_streams() -> Iterator[None]:
    """Make stdout and stderr usable in the block, even if they were closed when the process started.

    Characters that a stream cannot encode are escaped. No new file gets the descriptor of a closed stream.
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
    """Replacement for a closed stdout, for which `sys.stdout` is None. Writing raises an error."""

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
    """Redirect a broken stream to the null device, so that the interpreter's flush at exit does not fail."""
    with suppress(OSError, ValueError):
        number, nowhere = stream.fileno(), os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, number)
        os.close(nowhere)


def _occupy_closed_descriptors() -> None:
    """Open closed descriptors 0 to 2. Otherwise, the next opened file would get the number of a stream."""
    for number in (0, 1, 2):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)


def _shown(text: str, *, has_commands: bool = False) -> str:
    """Escape non-printable characters, and everything that GitHub's runner would read as a command.

    The escapes are also valid in JSON, where `##[` may be part of a string. If `has_commands`, lines that
    begin with `::` are commands, which must not be escaped.

    Source: `ActionCommand.TryParseV2` and `TryParse` of actions/runner: a line that begins with `::`, and
        `##[` anywhere.
    """
    lines = escaped_lines(text)
    shown = lines if has_commands else _COMMAND.sub(r"\1\\u003a:", lines)
    return shown.replace("##[", r"#\u0023[")
