"""The progress of a command on stderr."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, TextIO

from fakexport.cli.streams import write_leniently
from fakexport.documents.escaping import escaped

if TYPE_CHECKING:
    from fakexport.report import Progress

__all__ = ["lines_on_stderr", "progress_on_stderr"]

_BACK_AND_CLEAR = "\r\x1b[K"


@contextmanager
def progress_on_stderr(*, is_shown: bool) -> Iterator[Callable[[Progress], None] | None]:
    """Gives what shows each step of a check, as `lines_on_stderr` does; a finding keeps its line."""
    with lines_on_stderr(is_shown=is_shown) as show:
        yield None if show is None else lambda progress: _show_progress(progress, show)


def _show_progress(progress: Progress, show: Callable[[str], None]) -> None:
    if progress.finding:
        start = _BACK_AND_CLEAR if sys.stderr.isatty() else ""
        write_leniently(sys.stderr, f"{start}{escaped(f'{_of_target(progress)}: {progress.finding}')}\n")
    show(_step_text(progress))


@contextmanager
def lines_on_stderr(*, is_shown: bool) -> Iterator[Callable[[str], None] | None]:
    """Gives what shows each step: one line that changes on a terminal and goes away, else a line per step.

    Args:
        is_shown: False gives None.
    """
    if not is_shown:
        yield None
        return
    stream = sys.stderr
    is_live = stream.isatty()
    try:
        yield lambda step: _show(stream, f"{escaped(step)} ...", is_live=is_live)
    finally:
        if is_live:
            write_leniently(stream, _BACK_AND_CLEAR)


def _show(stream: TextIO, text: str, *, is_live: bool) -> None:
    if is_live:  # a longer line would wrap, and could not be taken back
        text = f"{_BACK_AND_CLEAR}{text[: shutil.get_terminal_size().columns - 1]}"
    write_leniently(stream, text if is_live else f"{text}\n")


def _step_text(progress: Progress) -> str:
    """`[2/3] H100: trace`"""
    if progress.step == "compare":
        return f"[{progress.target_index}/{progress.target_count}] compare the targets"
    step = "look for more problems" if progress.step == "explore" else progress.step
    return f"{_of_target(progress)}: {step}"


def _of_target(progress: Progress) -> str:
    return f"[{progress.target_index}/{progress.target_count}] {progress.target}"
