"""The two streams: data on stdout, everything else on stderr."""

from __future__ import annotations

import io
import os
import shutil
import sys

__all__ = ["abandon_output", "output_width", "tolerate_any_text", "write_error_line", "write_output"]

_WIDTH_OF_A_FILE = 100


def write_output(text: str) -> None:
    """Writes data to stdout as it is."""
    sys.stdout.write(text)


def write_error_line(text: str) -> None:
    """Writes text and a line end to stderr."""
    sys.stderr.write(f"{text}\n")


def output_width() -> int:
    """Returns the width of the terminal on stdout; 100 for a file or pipe, whose text is always the same."""
    return shutil.get_terminal_size().columns if sys.stdout.isatty() else _WIDTH_OF_A_FILE


def tolerate_any_text() -> None:
    """Lets both streams escape what their encoding does not have, instead of failing."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def abandon_output() -> None:
    """Points stdout to nowhere after its reader has gone, so that the interpreter exits without a word."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
