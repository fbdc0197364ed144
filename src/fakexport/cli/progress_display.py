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
from fakexport.cli.time_limit import time_limit
from fakexport.files import escaped
from fakexport.files.processes import OWN_THREAD

if TYPE_CHECKING:
    from fakexport.report import Progress

_BACK_AND_CLEAR = "\r\x1b[K"
_TICK_S = 0.2


@contextmanager
def progress_on_stderr(
    *, is_shown: bool, limit_s: float | None = None
) -> Iterator[Callable[[Progress], None] | None]:
    """Yield a callback that shows the steps of a check, with the elapsed time and the traced module.

    Lines with findings stay visible. If there is nothing to do for the callback, such as if stderr is not a
    terminal, yield None. After `limit_s`, the block is stopped with `TimeLimitExceeded`, which tells the last
    step.
    """
    last: list[Progress] = []

    def where() -> str:
        return f"{_step_text(last[-1])}, {last[-1].blocks or ''}".rstrip(", ") if last else "start"

    with _display(is_shown=is_shown) as display, time_limit(limit_s, where):

        def show(progress: Progress) -> None:
            last[:] = [progress]
            if display is not None:
                _show_progress(progress, display)

        yield None if display is None and limit_s is None else show


@contextmanager
def lines_on_stderr(*, is_shown: bool) -> Iterator[Callable[[str], None] | None]:
    """Yield a callback that shows each step in one line of the terminal, or None if nothing is shown."""
    with _display(is_shown=is_shown) as display:
        yield None if display is None else lambda step: display.show(step)


@contextmanager
def _display(*, is_shown: bool) -> Iterator[_LiveLine | None]:
    if not (is_shown and sys.stderr.isatty()):
        yield None
        return
    display = _LiveLine(sys.stderr)
    try:
        yield display
    finally:
        display.end()


class _LiveLine:
    """Show the current step in the last line of a terminal. A thread keeps the line up to date."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._lock = threading.Lock()
        self._ended = threading.Event()
        self._thread: threading.Thread | None = None
        self._step = self._shown = ""
        self._detail: Callable[[], str] = str
        self._start_s = 0.0

    def show(self, step: str, detail: Callable[[], str] = str) -> None:
        """Show the current step. `detail` returns text that changes during a step."""
        with self._lock:
            self._step, self._detail, self._start_s = escaped(step), detail, time.monotonic()
            self._shown = ""
            self._write()
        if self._thread is None:
            self._thread = threading.Thread(target=self._tick, name=f"{OWN_THREAD}progress", daemon=True)
            self._thread.start()

    def keep(self, line: str) -> None:
        """Write a line that stays visible."""
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


def _show_progress(progress: Progress, display: _LiveLine) -> None:
    if progress.finding:
        display.keep(escaped(f"{_of_target(progress)}: {progress.finding}"))
    display.show(_step_text(progress), lambda: escaped(str(progress.blocks or "")))


def _step_text(progress: Progress) -> str:
    """Return the target and the step, such as `[2/3] H100: trace`."""
    if progress.step == "compare":
        return f"[{progress.target_index}/{progress.target_count}] compare targets"
    step = "look for further problems" if progress.step == "explore" else progress.step
    return f"{_of_target(progress)}: {step}"


def _of_target(progress: Progress) -> str:
    return f"[{progress.target_index}/{progress.target_count}] {progress.target}"
