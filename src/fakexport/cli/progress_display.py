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
from fakexport.files import escaped
from fakexport.files.processes import OWN_THREAD

if TYPE_CHECKING:
    from fakexport.report import Progress

_BACK_AND_CLEAR = "\r\x1b[K"
_TICK_S = 0.2


@contextmanager
def progress_on_stderr(*, is_shown: bool) -> Iterator[Callable[[Progress], None] | None]:
    """Yield a callback that shows the steps of a check. Lines with findings stay visible.

    On a terminal, the line also shows the elapsed time of the step and the number of traced blocks.
    """
    with _display(is_shown=is_shown) as display:
        yield None if display is None else lambda progress: _show_progress(progress, display)


@contextmanager
def lines_on_stderr(*, is_shown: bool) -> Iterator[Callable[[str], None] | None]:
    """Yield a callback that shows each step. On a terminal, it rewrites one line; otherwise, it adds lines.

    Args:
        is_shown: Whether to show anything. If False, yield None.
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
    """Write one line per step, for a file or a pipe."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def show(self, step: str, detail: Callable[[], str] = str) -> None:
        """Show the current step. `detail` returns text that changes during a step; this class ignores it."""
        self.keep(f"{escaped(step)} ...")

    def keep(self, line: str) -> None:
        write_leniently(self._stream, f"{line}\n")

    def end(self) -> None:
        """Erase the line of the current step, if it is temporary."""


class _LiveLine(_Lines):
    """Show the current step in the last line of a terminal. A thread keeps the line up to date."""

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
        if text != self._shown:  # Cut the text, because a line that wraps could not be erased.
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
    """Return `57 of 126 blocks`, or "" if blocks are not counted in this step."""
    blocks = progress.blocks
    return f"{blocks.done} of {blocks.total} blocks" if blocks is not None and blocks.total else ""


def _step_text(progress: Progress) -> str:
    """Return the target and the step, such as `[2/3] H100: trace`."""
    if progress.step == "compare":
        return f"[{progress.target_index}/{progress.target_count}] compare targets"
    step = "look for further problems" if progress.step == "explore" else progress.step
    return f"{_of_target(progress)}: {step}"


def _of_target(progress: Progress) -> str:
    return f"[{progress.target_index}/{progress.target_count}] {progress.target}"
