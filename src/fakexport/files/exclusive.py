"""Locks between processes that write one file. Windows has no such locks: the last writer wins."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

try:
    import fcntl
except ImportError:
    fcntl = None  # type: ignore[assignment]

HAS_LOCKS = fcntl is not None


@contextmanager
def exclusive(folder: Path) -> Iterator[None]:
    """Enter a context that one process at a time is in: to read a file of the folder and replace it.

    The lock is that of the folder itself (`flock`), so no file is left, and it ends with the process.

    Raises:
        OSError: the folder cannot be opened, or its file system has no locks.
    """
    if fcntl is None:
        yield
        return
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def lock_or_refuse(descriptor: int) -> None:
    """Lock an open file until it is closed.

    Raises:
        BlockingIOError: another process has locked it.
        OSError: its file system has no locks.
    """
    if fcntl is not None:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)


def lock(descriptor: int) -> None:
    """Lock an open file or folder until it is closed, where its file system has locks."""
    if fcntl is not None:
        with suppress(OSError):
            fcntl.flock(descriptor, fcntl.LOCK_EX)
