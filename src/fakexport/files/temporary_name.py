"""Names of files and folders that are being written: `.NAME.XXXXXXXX.tmp`, until they are complete.

Their process holds a lock on them. What has such a name and no lock was left by a killed process. It is
removed when a file or folder NAME is written again.
"""

from __future__ import annotations

import os
import re
import shutil
import stat
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from .exclusive import HAS_LOCKS, lock, lock_or_refuse

_MOST_CHARACTERS = 60
"""Four bytes each, of a name of at most 255."""
_FLAGS = os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_NOFOLLOW", 0)


def temporary_name(target: Path) -> Path:
    """Return a name next to `target` that nothing has."""
    return target.with_name(f".{target.name[:_MOST_CHARACTERS]}.{os.urandom(4).hex()}.tmp")


def in_use(target: Path, create: Callable[[Path], int]) -> tuple[int, Path]:
    """Create a file or folder under a temporary name, and lock it.

    Args:
        target: Its name when it is complete.
        create: Creates it under the name that it gets, and returns a descriptor.
    Returns:
        The descriptor, which holds the lock until it is closed, and the name.
    """
    while True:
        named = temporary_name(target)
        descriptor = create(named)
        lock(descriptor)
        if named.exists():  # Another process may have taken it for a leftover before it was locked.
            return descriptor, named
        os.close(descriptor)


def remove_leftovers(target: Path) -> None:
    """Remove what a killed process left when it wrote `target`."""
    mine = re.compile(rf"\.{re.escape(target.name[:_MOST_CHARACTERS])}\.[0-9a-f]{{8}}\.tmp")
    found: list[Path] = []
    with suppress(OSError):
        found = [path for path in target.parent.iterdir() if mine.fullmatch(path.name)]
    for path in found if HAS_LOCKS else ():
        with suppress(OSError):
            _remove_if_left(path)


def _remove_if_left(path: Path) -> None:
    status = path.lstat()
    is_folder = stat.S_ISDIR(status.st_mode)
    if status.st_uid != os.geteuid() or not (is_folder or stat.S_ISREG(status.st_mode)):
        return
    descriptor = os.open(path, _FLAGS)
    try:
        lock_or_refuse(descriptor)
        shutil.rmtree(path) if is_folder else path.unlink()
    finally:
        os.close(descriptor)
