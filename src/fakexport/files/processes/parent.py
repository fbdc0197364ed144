"""End a process when its parent process ends."""

from __future__ import annotations

import os
import signal
import threading

OWN_THREAD = "fakexport-"
"""Name prefix of threads that only wait or show progress. They hold no locks, so a fork is safe."""


def end_with_parent(alive: int) -> None:
    """Make this process and its children die when its parent process ends.

    A background thread waits for the end of the parent. It needs the GIL, so native code can delay it.

    Args:
        alive: The read end of a pipe whose write end only the parent process has.
    """

    def wait() -> None:
        os.read(alive, 1)  # Nothing is ever written. The read returns when the write end is closed.
        os.killpg(0, signal.SIGKILL)

    threading.Thread(target=wait, name=f"{OWN_THREAD}parent", daemon=True).start()
