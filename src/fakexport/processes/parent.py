"""A process that ends when the one that started it is gone."""

from __future__ import annotations

import os
import signal
import threading


def end_with_parent(alive: int) -> None:
    """Have this process and its children killed once its parent is gone.

    A thread waits for that; it briefly needs Python's lock, which native code may hold.

    Args:
        alive: A pipe's end to read, whose other end only that process has.
    """

    def wait() -> None:
        os.read(alive, 1)  # Nobody writes: it returns when the other end is closed.
        os.killpg(0, signal.SIGKILL)

    threading.Thread(target=wait, daemon=True).start()
