"""Stop a command that takes longer than its `--timeout`."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

from fakexport.error import FakexportError

EXIT_CODE = 124
"""The exit code of a command that was stopped, as of `timeout` in GNU coreutils."""


class TimeLimitExceeded(KeyboardInterrupt):
    """A command took longer than its `--timeout`. The message is one line that says what it was doing.

    Like an interruption, it is not an `Exception`: a trace turns these into diagnostics of the model.
    """


@contextmanager
def time_limit(seconds: float | None, where: Callable[[], str]) -> Iterator[None]:
    """Raise `TimeLimitExceeded` in the block after a time. `where` returns what is being done then.

    None means no limit. It is checked when Python code of the main thread runs.

    Raises:
        FakexportError: The system has no timers, or this is not the main thread.
    """
    if seconds is None:
        yield
        return
    if not hasattr(signal, "setitimer") or threading.current_thread() is not threading.main_thread():
        raise FakexportError("--timeout needs the timers of Linux or macOS, and the main thread")

    def stop(number: int, frame: FrameType | None) -> None:
        raise TimeLimitExceeded(f"stopped after {seconds:g} s: {where()}")

    before = signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
