"""The one way to open an untrusted file, which may also be replaced at any time.

What is at a path may be a pipe that no one writes to, an endless device, or another file a moment
later. So a path is opened once, without waiting; what it is, its size and its content are then asked of that
descriptor, by the code that checks the file and the code that uses it.
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
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType

from .inputs import remember_input

_PIECE_BYTES = 1 << 20
# Python's `mmap` names it from 3.12 on. Without it, Linux refuses a private mapping larger than its memory.
_LINUX_NORESERVE = 0x4000
_NAMES = ("O_NONBLOCK", "O_NOCTTY", "O_CLOEXEC", "O_BINARY", "O_NOINHERIT")
# Windows has the last two and no others.
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
    """A regular file, open for reading; `open_regular` makes it. Its last user closes it, or `with`.

    Args:
        path: As the caller named it, for messages.
        descriptor: Owned by this object from now on.
        status: `fstat` of the descriptor.
    """

    def __init__(self, path: str, descriptor: int, status: os.stat_result) -> None:
        self.path = path
        self.status = status
        self._descriptor = descriptor
        self._lock = threading.Lock()
        self._close = weakref.finalize(self, os.close, descriptor)

    @property
    def size(self) -> int:
        """Return the size of the file in bytes when it was opened."""
        return self.status.st_size

    @property
    def same_file(self) -> Path:
        """Return a path for libraries that open files themselves; on Linux, of this very file while open.

        Elsewhere it is the path that was opened, which may be another file by now.
        """
        link = Path("/proc/self/fd", str(self._descriptor))
        return link if sys.platform == "linux" and link.exists() else Path(self.path)

    def read_at(self, offset: int, length: int) -> bytes:
        """Return the bytes from `offset` on; fewer only where the file ends.

        Raises:
            OSError: they cannot be read, or not without waiting for them.
        """
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
        """Yield the same in steps, without a mapping, whose pages would count as memory of the process."""
        while length > 0 and (piece := self.read_at(offset, min(length, _PIECE_BYTES))):
            yield piece
            offset, length = offset + len(piece), length - len(piece)

    def read(self, most_bytes: int) -> bytes:
        """Return the whole content. The size is not trusted: some files yield more than they report.

        Raises:
            OSError: it has more than `most_bytes`, or cannot be read.
        """
        content = bytearray()
        for piece in () if self.size > most_bytes else self.pieces(0, most_bytes + 1):
            content += piece
        if self.size > most_bytes or len(content) > most_bytes:
            raise OSError(errno.EFBIG, f"has more than {most_bytes:,} bytes", self.path)
        return bytes(content)

    def mapped(self) -> mmap.mmap:
        """Map the content into memory, private to this process: no byte is read before it is used.

        The mapping lasts as long as it is used, also when the file is closed.

        Raises:
            OSError: it cannot be mapped, or has another size than when it was opened.
            ValueError: the file is empty.
        """
        size = os.fstat(self._descriptor).st_size
        if size != self.size:
            raise OSError(
                errno.ESTALE, f"has {size:,} bytes now, and had {self.size:,} when it was opened", self.path
            )
        if sys.platform == "linux":
            flags = mmap.MAP_PRIVATE | _LINUX_NORESERVE
            return mmap.mmap(self._descriptor, size, flags=flags, prot=mmap.PROT_READ | mmap.PROT_WRITE)
        return mmap.mmap(self._descriptor, size, access=mmap.ACCESS_COPY)

    def close(self) -> None:
        """Close the file; it cannot be read afterwards. Mappings stay."""
        self._close()
        self._descriptor = -1  # The number may be that of another file by the next read.

    def __enter__(self) -> RegularFile:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def open_regular(path: str | os.PathLike[str]) -> RegularFile:
    """Open a regular file for reading, through links, without waiting and without side effects.

    Raises:
        OSError: there is no such file, it may not be read, or it is not a regular file; names the path.
    """
    name = os.fspath(path)
    if "\0" in str(name):
        raise OSError(errno.EINVAL, "contains a null character", name)
    _check_regular(name, Path(name).stat())  # Opening a device or a pipe may already do something to it.
    return _opened(name, os.open(name, _FLAGS))


def open_below(folder: str | os.PathLike[str], name: str) -> RegularFile:
    """Open a regular file below a folder, following no symbolic link on the way from there.

    Args:
        folder: An existing folder.
        name: Names separated by `/`, none of them `..` or empty.
    Raises:
        OSError: as `open_regular`; a link on the way, and a step that leaves the folder, are errors too.
    """
    path = os.path.join(folder, name)  # noqa: PTH118 (for messages, as it was named)
    *folders, last = name.split("/")
    if any(step in ("", ".", "..") for step in (*folders, last)):
        raise OSError(errno.EINVAL, "is not below its folder", path)
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
    """Open a file below a folder where no folder can be held open (Windows)."""
    place = folder
    for step in steps:
        place = place / step
        status = place.lstat()
        if stat.S_ISLNK(status.st_mode) or getattr(status, "st_reparse_tag", False):
            raise OSError(errno.ELOOP, "is or is behind a symbolic link", path)
    opened = open_regular(place)
    if not os.path.samestat(status, opened.status):
        opened.close()
        raise OSError(errno.ESTALE, "was replaced while it was being opened", path)
    return opened


def read_file(path: str | os.PathLike[str], *, most_bytes: int) -> bytes:
    """Return the content of a regular file.

    Raises:
        OSError: as `open_regular`; or it has more than `most_bytes`.
    """
    with open_regular(path) as file:
        return file.read(most_bytes)


def kind_of(mode: int) -> str | None:
    """`a named pipe`, for the mode of something that is not a regular file; None for one that is."""
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
