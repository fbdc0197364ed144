"""Atomic writes of files and folders, and locks between processes that write the same file."""

from __future__ import annotations

import contextlib
import errno
import os
import re
import shutil
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from io import BufferedWriter
from pathlib import Path

from fakexport.error import FakexportError
from fakexport.files import escaped
from fakexport.files.regular_file import is_input, kind_of

try:
    import fcntl
except ImportError:
    fcntl = None  # type: ignore[assignment]

HAS_LOCKS = fcntl is not None


@contextmanager
def exclusive(folder: Path) -> Iterator[None]:
    """Let only one process at a time run the block, for example to read a file in the folder and replace it.

    The folder itself is locked (`flock`), so no lock file is left behind, and the lock ends with the process.

    Raises:
        OSError: The folder cannot be opened, or its file system does not support locks.
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
    """Lock an open file until it is closed, or raise BlockingIOError if it is locked. No-op on Windows."""
    if fcntl is not None:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)


def lock(descriptor: int) -> None:
    """Lock an open file or folder until it is closed, if its file system supports locks."""
    if fcntl is not None:
        with suppress(OSError):
            fcntl.flock(descriptor, fcntl.LOCK_EX)


_DESCRIPTORS = Path("/proc/self/fd")


class FileWriteError(FakexportError, OSError):
    """A file was not written, and an existing file at its path is unchanged. The message is one line."""

    def __init__(self, path: str | os.PathLike[str], cause: OSError) -> None:
        super().__init__(cause.errno, cause.strerror or str(cause), os.fspath(path))

    def __str__(self) -> str:
        return escaped(f"cannot write {self.filename}: {self.strerror}")


@contextlib.contextmanager
def new_file(
    path: str | os.PathLike[str], *, mode: int = 0o666, replaces_input: bool = False
) -> Iterator[BufferedWriter]:
    """Open a file that replaces `path` when the block ends without an error.

    If the system supports it, the new file has no name until then, so a killed process leaves no file behind.
    Otherwise, and for a moment when an existing file is replaced, the new file has a temporary name,
    `.NAME.XXXXXXXX.tmp`. On an error, the temporary file is removed. If the process is killed, the temporary
    file is removed when `path` is written again. The folder must exist. An existing file or symbolic link is
    replaced, but not a device, a pipe, a directory, or a file that the command has read.

    Args:
        path: The file to write.
        mode: Permissions of the file, before the umask is applied.
        replaces_input: Whether the command may replace a file that it has read, such as a lock file.

    Raises:
        FileWriteError: The file could not be written. An existing file is unchanged.
    """
    target = Path(path)
    named: Path | None = None
    try:
        _check_replaceable(target, replaces_input)
        _remove_leftovers(target)
        descriptor, named = _create(target, mode)
        try:
            with open(descriptor, "wb") as file:  # noqa: PTH123 (a descriptor is not a path)
                yield file
                file.flush()
                os.fsync(descriptor)
                # Checked again, because some inputs are only read while the output is written.
                _check_replaceable(target, replaces_input)
                if named is None and not _name(descriptor, target):
                    named = _temporary_name(target)
                    _name(descriptor, named)
                if named is not None:
                    if os.name == "nt":
                        file.close()  # Windows cannot rename an open file.
                    named.replace(target)
                    named = None
        finally:
            if named is not None:
                named.unlink(missing_ok=True)
        _sync_folder(target.parent)
    except FileWriteError:
        raise
    except OSError as error:
        raise FileWriteError(path, error) from error


def _check_replaceable(target: Path, replaces_input: bool) -> None:
    """Reject targets that must not be replaced: inputs, and devices such as `/dev/null`."""
    if not target.name:
        raise IsADirectoryError(errno.EISDIR, "is a directory, not the name of a file")
    with contextlib.suppress(FileNotFoundError):
        status = target.stat()
        if (kind := kind_of(status.st_mode)) is not None:
            raise OSError(errno.EEXIST, f"is {kind}, not a regular file")
        if is_input(status) and not replaces_input:
            raise OSError(errno.EEXIST, "is an input of this command: choose a different name for the output")


def _create(target: Path, mode: int) -> tuple[int, Path | None]:
    """Create and lock a file in the target's folder. Return its descriptor and temporary name, if any."""
    unnamed = getattr(os, "O_TMPFILE", 0)
    if unnamed and _DESCRIPTORS.is_dir():
        with contextlib.suppress(OSError, NotImplementedError):
            descriptor = os.open(target.parent, unnamed | os.O_RDWR, mode)
            lock(descriptor)
            return descriptor, None
    flags = os.O_CREAT | os.O_EXCL | os.O_RDWR | getattr(os, "O_BINARY", 0)
    return _in_use(target, lambda named: os.open(named, flags, mode))


def _name(descriptor: int, path: Path) -> bool:
    """Link an unnamed file to a name. Return False if the name is taken."""
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        # Without `dst_dir_fd`, Python ignores `follow_symlinks` (python/cpython#81793).
        source = _DESCRIPTORS / str(descriptor)
        os.link(source, path.name, dst_dir_fd=folder, follow_symlinks=True)
    except FileExistsError:
        return False
    finally:
        os.close(folder)
    return True


def _sync_folder(folder: Path) -> None:
    """Flush the folder to disk, if possible, so that the new name survives a power failure."""
    with contextlib.suppress(OSError):
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


@contextlib.contextmanager
def new_folder(path: str | os.PathLike[str]) -> Iterator[Path]:
    """Create a folder that is renamed to `path` when the block ends. `path` must be missing or empty.

    Until then, the folder has a temporary name, which is yielded. On an error, the temporary folder is
    removed. If the process is killed, the temporary folder is removed when `path` is written again.
    """
    target = Path(path)
    _remove_leftovers(target)
    descriptor, named = _in_use(target, _make_folder)
    try:
        yield named
        named.replace(target)
    finally:
        shutil.rmtree(named, ignore_errors=True)
        os.close(descriptor)
    _sync_folder(target.parent)


def _make_folder(named: Path) -> int:
    named.mkdir()
    return os.open(named if HAS_LOCKS else os.devnull, os.O_RDONLY)  # Windows cannot open folders.


_MOST_CHARACTERS = 60
"""File names are limited to 255 bytes, and a character takes at most four bytes."""
_FLAGS = os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_NOFOLLOW", 0)


def _temporary_name(target: Path) -> Path:
    """Return an unused name next to `target`."""
    return target.with_name(f".{target.name[:_MOST_CHARACTERS]}.{os.urandom(4).hex()}.tmp")


def _in_use(target: Path, create: Callable[[Path], int]) -> tuple[int, Path]:
    """Create a file or folder under a temporary name. Return its locked descriptor, and the name."""
    while True:
        named = _temporary_name(target)
        descriptor = create(named)
        lock(descriptor)
        if named.exists():  # Before it was locked, another process may have removed it as a leftover.
            return descriptor, named
        os.close(descriptor)


def _remove_leftovers(target: Path) -> None:
    """Remove temporary files of `target` that a killed process left behind."""
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
