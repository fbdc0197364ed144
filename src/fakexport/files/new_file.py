"""Atomic file writes."""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Iterator
from io import BufferedWriter
from pathlib import Path

from fakexport.documents import escaped
from fakexport.error import FakexportError

from .inputs import is_input
from .regular_file import kind_of

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

    It has no name until then where the system allows that, so that even a killed process leaves nothing;
    elsewhere it is called `.NAME.XXXXXXXX.tmp` and removed on any error. The folder must exist. What was at
    `path` is replaced, even a symbolic link, unless it is a device, a pipe, a directory, or a file that the
    command has read.

    Args:
        path: The file.
        mode: Its permissions, less those that the umask takes away.
        replaces_input: The command replaces what it has read there, such as a lock.
    Raises:
        FileWriteError: It could not be written; `path` is as it was.
    """
    target = Path(path)
    try:
        _check_replaceable(target, replaces_input)
        named = target.with_name(f".{target.name[:200]}.{os.urandom(4).hex()}.tmp")
        descriptor, is_named = _create(named, mode)
        try:
            with open(descriptor, "wb") as file:  # noqa: PTH123 (a descriptor is no path)
                yield file
                file.flush()
                os.fsync(descriptor)
                if not is_named:
                    _name(descriptor, named)
                    is_named = True
            _check_replaceable(target, replaces_input)  # Some inputs are read while the output is written.
            named.replace(target)
            is_named = False
        finally:
            if is_named:
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


def _create(named: Path, mode: int) -> tuple[int, bool]:
    """Return a descriptor of a new file in the folder, and whether it has its temporary name already."""
    unnamed = getattr(os, "O_TMPFILE", 0)
    if unnamed and _DESCRIPTORS.is_dir():
        with contextlib.suppress(IsADirectoryError, PermissionError, NotImplementedError, OSError):
            return os.open(named.parent, unnamed | os.O_RDWR, mode), False
    flags = os.O_CREAT | os.O_EXCL | os.O_RDWR | getattr(os, "O_BINARY", 0)
    return os.open(named, flags, mode), True


def _name(descriptor: int, named: Path) -> None:
    """Give a file without a name its temporary one."""
    folder = os.open(named.parent, os.O_RDONLY)
    try:
        # Without `dst_dir_fd` Python ignores `follow_symlinks` and links the link (python/cpython#81793).
        source = _DESCRIPTORS / str(descriptor)
        os.link(source, named.name, dst_dir_fd=folder, follow_symlinks=True)
    finally:
        os.close(folder)


def _sync_folder(folder: Path) -> None:
    """Make the new name survive a power failure, where the system can."""
    with contextlib.suppress(OSError):
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
