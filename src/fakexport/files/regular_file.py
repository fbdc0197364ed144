"""Safely open an untrusted file, which may be replaced at any time.

A path may lead to a pipe that no one writes to, to an endless device, or to a different file a moment later.
Therefore, a path is opened only once, without blocking. Type, size and content are then all read from this
one descriptor.
"""

from __future__ import annotations

import errno
import functools
import mmap
import operator
import os
import stat
import sys
import threading
import weakref
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType

Identity = tuple[int, int]
"""Device and inode. All names and links of a file have the same identity."""

_read: set[Identity] | None = None


@contextmanager
def inputs_protected() -> Iterator[None]:
    """Prevent `new_file` from replacing files that were opened in this context."""
    global _read
    outer, _read = _read, set()
    try:
        yield
    finally:
        _read = outer


def remember_input(status: os.stat_result) -> None:
    """Record a file that was opened for reading."""
    remember_inputs([(status.st_dev, status.st_ino)])


def remember_inputs(found: Iterable[Identity]) -> None:
    """Record files that a different process has opened."""
    if _read is not None:
        _read.update(found)


def inputs_read() -> frozenset[Identity]:
    """Return the files that were opened in the current context."""
    return frozenset(_read or ())


def is_input(status: os.stat_result) -> bool:
    """Return whether a file was opened in the current context."""
    return _read is not None and (status.st_dev, status.st_ino) in _read


_PIECE_BYTES = 1 << 20
# `mmap.MAP_NORESERVE` exists since Python 3.12. Without the flag, Linux limits the size of private mappings
# to the available memory.
_LINUX_NORESERVE = 0x4000
_NAMES = ("O_NONBLOCK", "O_NOCTTY", "O_CLOEXEC", "O_BINARY", "O_NOINHERIT")
# Windows only has the last two flags.
_FLAGS = os.O_RDONLY | functools.reduce(operator.or_, (int(getattr(os, name, 0)) for name in _NAMES))
_KINDS = {
    stat.S_IFIFO: "a named pipe",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
    stat.S_IFDIR: "a directory",
    stat.S_IFLNK: "a symbolic link",
}


class RegularFile:
    """A regular file that is open for reading. Create it with `open_regular`.

    Args:
        path: Path as the caller passed it, for messages.
        descriptor: File descriptor. This object closes it.
        status: Result of `fstat` on the descriptor.
    """

    def __init__(self, path: str, descriptor: int, status: os.stat_result) -> None:
        self.path = path
        self.status = status
        self._descriptor = descriptor
        self._lock = threading.Lock()
        self._close = weakref.finalize(self, os.close, descriptor)

    @property
    def size(self) -> int:
        """Size of the file in bytes when it was opened."""
        return self.status.st_size

    @property
    def same_file(self) -> Path:
        """Path of the file for libraries that open files themselves. It is valid while this object is open.

        On Linux, the path leads to exactly this file. On other systems, it is the original path, which may
        lead to a different file by now.
        """
        link = Path("/proc/self/fd", str(self._descriptor))
        return link if sys.platform == "linux" and link.exists() else Path(self.path)

    def read_at(self, offset: int, length: int) -> bytes:
        """Read `length` bytes at `offset`, or fewer at the end of the file."""
        pieces = []
        try:
            while length > 0 and (piece := self._read_once(offset, length)):
                pieces.append(piece)
                offset, length = offset + len(piece), length - len(piece)
        except OSError as error:
            raise OSError(error.errno, error.strerror, self.path) from error
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)

    def _read_once(self, offset: int, length: int) -> bytes:
        if hasattr(os, "pread"):
            return os.pread(self._descriptor, length, offset)
        with self._lock:
            os.lseek(self._descriptor, offset, os.SEEK_SET)
            return os.read(self._descriptor, length)

    def pieces(self, offset: int = 0, length: int = sys.maxsize) -> Iterator[bytes]:
        """Yield the bytes in pieces, so that, unlike with a mapping, the whole file is never in memory."""
        while length > 0 and (piece := self.read_at(offset, min(length, _PIECE_BYTES))):
            yield piece
            offset, length = offset + len(piece), length - len(piece)

    def read(self, most_bytes: int) -> bytes:
        """Return the whole content. The reported size is not trusted, because some files are larger.

        Raises:
            OSError: The file has more than `most_bytes`, or cannot be read.
        """
        content = bytearray()
        for piece in () if self.size > most_bytes else self.pieces(0, most_bytes + 1):
            content += piece
        if self.size > most_bytes or len(content) > most_bytes:
            raise OSError(errno.EFBIG, f"has more than {most_bytes:,} bytes", self.path)
        return bytes(content)

    def mapped(self) -> mmap.mmap:
        """Memory-map the content without reading it.

        The mapping is private: writes into it do not change the file. It stays valid after the file is
            closed.

        Raises:
            OSError: The file cannot be mapped, or its size has changed since it was opened.
            ValueError: The file is empty.
        """
        size = os.fstat(self._descriptor).st_size
        if size != self.size:
            raise OSError(
                errno.ESTALE, f"has {size:,} bytes, but had {self.size:,} when it was opened", self.path
            )
        if sys.platform == "linux":
            flags = mmap.MAP_PRIVATE | _LINUX_NORESERVE
            return mmap.mmap(self._descriptor, size, flags=flags, prot=mmap.PROT_READ | mmap.PROT_WRITE)
        return mmap.mmap(self._descriptor, size, access=mmap.ACCESS_COPY)

    def close(self) -> None:
        """Close the file, which cannot be read afterwards. Mappings stay valid."""
        self._close()
        self._descriptor = -1  # The number may be reused for a different file.

    def __enter__(self) -> RegularFile:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def open_regular(path: str | os.PathLike[str]) -> RegularFile:
    """Open a regular file for reading. This follows links, does not block, and has no side effects.

    Raises:
        OSError: The file does not exist, cannot be read, or is not a regular file. The error names the path.
    """
    name = os.fspath(path)
    if "\0" in str(name):
        raise OSError(errno.EINVAL, "contains a null character", name)
    _check_regular(name, Path(name).stat())  # Opening a device or a pipe could have a side effect.
    return _opened(name, os.open(name, _FLAGS))


def open_below(folder: str | os.PathLike[str], name: str) -> RegularFile:
    """Open a regular file below a folder. Symbolic links below the folder are rejected.

    Args:
        folder: An existing folder.
        name: Path relative to the folder, separated by `/`. No part may be empty, `.` or `..`.

    Raises:
        OSError: The same errors as `open_regular`; or the path contains a symbolic link or leaves the folder.
    """
    path = os.path.join(folder, name)  # noqa: PTH118 (a path for messages, as the caller wrote it)
    *folders, last = name.split("/")
    if any(step in ("", ".", "..") for step in (*folders, last)):
        raise OSError(errno.EINVAL, "is not a plain relative path: it has an empty, `.` or `..` part", path)
    if os.open not in os.supports_dir_fd:
        return _open_step_by_step(path, Path(folder), [*folders, last])
    at = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        for step in folders:
            below = os.open(step, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=at)
            os.close(at)
            at = below
        _check_regular(path, os.stat(last, dir_fd=at, follow_symlinks=False))
        return _opened(path, os.open(last, _FLAGS | os.O_NOFOLLOW, dir_fd=at))
    except OSError as error:
        reason = (
            "is a symbolic link or is reached through one"
            if error.errno in (errno.ELOOP, errno.ENOTDIR)
            else None
        )
        raise OSError(error.errno, reason or error.strerror, path) from error
    finally:
        os.close(at)


def _open_step_by_step(path: str, folder: Path, steps: list[str]) -> RegularFile:
    """Open a file below a folder on Windows, where a folder cannot be opened."""
    place = folder
    for step in steps:
        place = place / step
        status = place.lstat()
        if stat.S_ISLNK(status.st_mode) or getattr(status, "st_reparse_tag", False):
            raise OSError(errno.ELOOP, "is a symbolic link or is reached through one", path)
    opened = open_regular(place)
    if not os.path.samestat(status, opened.status):
        opened.close()
        raise OSError(errno.ESTALE, "was replaced while it was being opened", path)
    return opened


def read_file(path: str | os.PathLike[str], *, most_bytes: int) -> bytes:
    """Return the content of a regular file, or raise an OSError if it has more than `most_bytes`."""
    with open_regular(path) as file:
        return file.read(most_bytes)


def kind_of(mode: int) -> str | None:
    """Return the kind of a file from its mode, such as `a named pipe`, or None for a regular file."""
    return None if stat.S_ISREG(mode) else _KINDS.get(stat.S_IFMT(mode), "something else")


def _check_regular(path: str, status: os.stat_result) -> None:
    if (kind := kind_of(status.st_mode)) is not None:
        code = errno.EISDIR if stat.S_ISDIR(status.st_mode) else errno.EINVAL
        raise OSError(code, f"is {kind}, not a regular file", path)


def _opened(path: str, descriptor: int) -> RegularFile:
    try:
        status = os.fstat(descriptor)
        _check_regular(path, status)
    except BaseException:
        os.close(descriptor)
        raise
    remember_input(status)
    return RegularFile(path, descriptor, status)
