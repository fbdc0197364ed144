"""Atomic writes of files and folders."""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
from collections.abc import Iterator
from io import BufferedWriter
from pathlib import Path

from fakexport.diagnostics import escaped
from fakexport.error import FakexportError

from .exclusive import HAS_LOCKS, lock
from .inputs import is_input
from .regular_file import kind_of
from .temporary_name import in_use, remove_leftovers, temporary_name

_DESCRIPTORS = Path("/proc/self/fd")


class FileWriteError(FakexportError, OSError):
    """A file was not written; whatever was at its path is still there. The text is one line."""

    def __init__(self, path: str | os.PathLike[str], cause: OSError) -> None:
        super().__init__(cause.errno, cause.strerror or str(cause), os.fspath(path))

    def __str__(self) -> str:
        return escaped(f"cannot write {self.filename}: {self.strerror}")


@contextlib.contextmanager
def new_file(
    path: str | os.PathLike[str], *, mode: int = 0o666, replaces_input: bool = False
) -> Iterator[BufferedWriter]:
    """Open a file that replaces `path` when the block ends without an error.

    It has no name until then where the system allows that, so that a killed process leaves nothing. Only a
    file that replaces another one needs a temporary name for a moment, `.NAME.XXXXXXXX.tmp`; elsewhere it has
    that name from the start. It is removed on any error, and after a kill when the file is written again. The
    folder must exist. What was at `path` is replaced, even a symbolic link, unless it is a device, a pipe, a
    directory, or a file that the command has read.

    Args:
        path: The file.
        mode: Its permissions, less those that the umask takes away.
        replaces_input: The command replaces what it has read there, such as a lock.
    Raises:
        FileWriteError: It could not be written; `path` is as it was.
    """
    target = Path(path)
    named: Path | None = None
    try:
        _check_replaceable(target, replaces_input)
        remove_leftovers(target)
        descriptor, named = _create(target, mode)
        try:
            with open(descriptor, "wb") as file:  # noqa: PTH123 (a descriptor is no path)
                yield file
                file.flush()
                os.fsync(descriptor)
                _check_replaceable(
                    target, replaces_input
                )  # Some inputs are read while the output is written.
                if named is None and not _name(descriptor, target):
                    named = temporary_name(target)
                    _name(descriptor, named)
                if named is not None:
                    if os.name == "nt":
                        file.close()  # An open file cannot be renamed there.
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
    """Refuse what must not be replaced: an input, and as root `/dev/null`, which would be gone."""
    if not target.name:
        raise IsADirectoryError(errno.EISDIR, "is a directory, not the name of a file")
    with contextlib.suppress(FileNotFoundError):
        status = target.stat()
        if (kind := kind_of(status.st_mode)) is not None:
            raise OSError(errno.EEXIST, f"is {kind}, not a regular file")
        if is_input(status) and not replaces_input:
            raise OSError(errno.EEXIST, "is an input of this command: choose another name for the output")


def _create(target: Path, mode: int) -> tuple[int, Path | None]:
    """Return a descriptor of a new file in the folder, locked, and its temporary name if it needs one."""
    unnamed = getattr(os, "O_TMPFILE", 0)
    if unnamed and _DESCRIPTORS.is_dir():
        with contextlib.suppress(OSError, NotImplementedError):
            descriptor = os.open(target.parent, unnamed | os.O_RDWR, mode)
            lock(descriptor)
            return descriptor, None
    flags = os.O_CREAT | os.O_EXCL | os.O_RDWR | getattr(os, "O_BINARY", 0)
    return in_use(target, lambda named: os.open(named, flags, mode))


def _name(descriptor: int, path: Path) -> bool:
    """Give a file without a name one, unless the name is taken."""
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        # Without `dst_dir_fd` Python ignores `follow_symlinks` and links the link (python/cpython#81793).
        source = _DESCRIPTORS / str(descriptor)
        os.link(source, path.name, dst_dir_fd=folder, follow_symlinks=True)
    except FileExistsError:
        return False
    finally:
        os.close(folder)
    return True


def _sync_folder(folder: Path) -> None:
    """Make the new name survive a power failure, where the system can."""
    with contextlib.suppress(OSError):
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


@contextlib.contextmanager
def new_folder(path: str | os.PathLike[str]) -> Iterator[Path]:
    """Create a folder that gets the name `path` when the block ends without an error.

    Until then it has a temporary one, which is yielded. It is removed on any error, and after a kill when the
    folder is written again.

    Args:
        path: The folder; missing, or empty.
    Raises:
        OSError: It could not be created, or renamed.
    """
    target = Path(path)
    remove_leftovers(target)
    descriptor, named = in_use(target, _make_folder)
    try:
        yield named
        named.replace(target)
    finally:
        shutil.rmtree(named, ignore_errors=True)
        os.close(descriptor)
    _sync_folder(target.parent)


def _make_folder(named: Path) -> int:
    named.mkdir()
    return os.open(named if HAS_LOCKS else os.devnull, os.O_RDONLY)  # Windows opens no folders.
