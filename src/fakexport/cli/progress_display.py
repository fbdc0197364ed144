"""Progress of a command on stderr."""

from __future__ import annotations

import shutil
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, TextIO

from fakexport.cli.streams import write_leniently
from fakexport.diagnostics import escaped
from fakexport.processes import OWN_THREAD

if TYPE_CHECKING:
    from fakexport.report import Progress

_BACK_AND_CLEAR = "\r\x1b[K"
_TICK_S = 0.2


@contextmanager
def progress_on_stderr(*, is_shown: bool) -> Iterator[Callable[[Progress], None] | None]:
    """Yield a callback that shows each step of a check, as `lines_on_stderr` does; a finding keeps its line.

    On a terminal the line moves within a step: blocks traced of how many, and the time since its begin.
    """
    with _display(is_shown=is_shown) as display:
        yield None if display is None else lambda progress: _show_progress(progress, display)


@contextmanager
def lines_on_stderr(*, is_shown: bool) -> Iterator[Callable[[str], None] | None]:
    """Yield a callback that shows each step: one line that is rewritten on a terminal, else a line per step.

    Args:
        is_shown: False yields None.
    """
    with _display(is_shown=is_shown) as display:
        yield None if display is None else lambda step: display.show(step)


@contextmanager
def _display(*, is_shown: bool) -> Iterator[_Lines | None]:
    if not is_shown:
        yield None
        return
    display = _LiveLine(sys.stderr) if sys.stderr.isatty() else _Lines(sys.stderr)
    try:
        yield display
    finally:
        display.end()


class _Lines:
    """A line per step, for a file or a pipe."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def show(self, step: str, detail: Callable[[], str] = str) -> None:
        """Say what is done now; `detail` is for a line that can change."""
        self.keep(f"{escaped(step)} ...")

    def keep(self, line: str) -> None:
        """Write a line that stays."""
        write_leniently(self._stream, f"{line}\n")

    def end(self) -> None:
        """Take back what was shown for a while."""


class _LiveLine(_Lines):
    """The last line of a terminal: a thread writes it again when what it says has changed."""

    def __init__(self, stream: TextIO) -> None:
        super().__init__(stream)
        self._lock = threading.Lock()
        self._ended = threading.Event()
        self._thread: threading.Thread | None = None
        self._step = self._shown = ""
        self._detail: Callable[[], str] = str
        self._start_s = 0.0

    def show(self, step: str, detail: Callable[[], str] = str) -> None:
        with self._lock:
            self._step, self._detail, self._start_s = escaped(step), detail, time.monotonic()
            self._shown = ""
            self._write()
        if self._thread is None:
            self._thread = threading.Thread(target=self._tick, name=f"{OWN_THREAD}progress", daemon=True)
            self._thread.start()

    def keep(self, line: str) -> None:
        with self._lock:
            write_leniently(self._stream, f"{_BACK_AND_CLEAR}{line}\n")
            self._shown = ""

    def end(self) -> None:
        self._ended.set()
        if self._thread is not None:
            self._thread.join()
        write_leniently(self._stream, _BACK_AND_CLEAR)

    def _tick(self) -> None:
        while not self._ended.wait(_TICK_S):
            with self._lock:
                self._write()

    def _write(self) -> None:
        seconds = int(time.monotonic() - self._start_s)
        parts = (self._step, self._detail(), _elapsed(seconds) if seconds else "")
        text = f"{', '.join(part for part in parts if part)} ..."
        if text != self._shown:  # a longer line would wrap, and could not be taken back
            self._shown = text
            cut = text[: shutil.get_terminal_size().columns - 1]
            write_leniently(self._stream, f"{_BACK_AND_CLEAR}{cut}")


def _elapsed(seconds: int) -> str:
    minutes, rest = divmod(seconds, 60)
    return f"{minutes} min {rest} s" if minutes else f"{rest} s"


def _show_progress(progress: Progress, display: _Lines) -> None:
    if progress.finding:
        display.keep(escaped(f"{_of_target(progress)}: {progress.finding}"))
    display.show(_step_text(progress), lambda: _blocks_text(progress))


def _blocks_text(progress: Progress) -> str:
    """`57 of 126 blocks`, where the step counts them."""
    blocks = progress.blocks
    return f"{blocks.done} of {blocks.total} blocks" if blocks is not None and blocks.total else ""


def _step_text(progress: Progress) -> str:
    """`[2/3] H100: trace`"""
    if progress.step == "compare":
        return f"[{progress.target_index}/{progress.target_count}] compare targets"
    step = "look for further problems" if progress.step == "explore" else progress.step
    return f"{_of_target(progress)}: {step}"


def _of_target(progress: Progress) -> str:
    return f"[{progress.target_index}/{progress.target_count}] {progress.target}"
