"""A process that ends when the one that started it is gone."""

from __future__ import annotations

import os
import signal
import threading

OWN_THREAD = "fakexport-"
"""How the names of threads begin that wait or show progress, and hold no lock that a fork would copy."""


def end_with_parent(alive: int) -> None:
    """Have this process and its children killed once its parent is gone.

    A thread waits for that; it briefly needs Python's lock, which native code may hold.

    Args:
        alive: A pipe's end to read, whose other end only that process has.
    """

    def wait() -> None:
        os.read(alive, 1)  # Nobody writes: it returns when the other end is closed.
        os.killpg(0, signal.SIGKILL)

    threading.Thread(target=wait, name=f"{OWN_THREAD}parent", daemon=True).start()
