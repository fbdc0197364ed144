"""The files that a command has read, which nothing that it writes may replace."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

Identity = tuple[int, int]
"""Device and inode: the same for every name and link of a file."""

_read: set[Identity] | None = None


@contextmanager
def inputs_protected() -> Iterator[None]:
    """Enter a context in which `new_file` refuses to replace a file that was opened in it."""
    global _read
    outer, _read = _read, set()
    try:
        yield
    finally:
        _read = outer


def remember_input(status: os.stat_result) -> None:
    """Take note of a file that was opened for reading."""
    remember_inputs([(status.st_dev, status.st_ino)])


def remember_inputs(found: Iterable[Identity]) -> None:
    """Take note of files that another process has opened."""
    if _read is not None:
        _read.update(found)


def inputs_read() -> frozenset[Identity]:
    """Return the files that were opened in the context."""
    return frozenset(_read or ())


def is_input(status: os.stat_result) -> bool:
    """Return whether a file was opened in the context."""
    return _read is not None and (status.st_dev, status.st_ino) in _read
