"""Writing a file so that it is there as a whole or not at all."""

from __future__ import annotations

import contextlib
import os
import secrets
from collections.abc import Iterator
from io import BufferedWriter
from pathlib import Path

from fakexport.archive.error import ArchiveWriteError

__all__ = ["new_file"]

_DESCRIPTORS = Path("/proc/self/fd")


@contextlib.contextmanager
def new_file(path: str | os.PathLike[str]) -> Iterator[BufferedWriter]:
    """A file to write to, which takes the place of `path` when the block ends without an error.

    It has no name until then where the system allows that, so that even a killed process leaves nothing;
    elsewhere it is called `.NAME.XXXXXXXX.tmp` and removed on any error. The folder must exist. The mode of
    the file follows the umask; what stood at `path`, a symbolic link too, is replaced.

    Raises:
        ArchiveWriteError: It could not be written; `path` is as it was.
    """
    target = Path(path)
    named = target.with_name(f".{target.name[:200]}.{secrets.token_hex(4)}.tmp")
    try:
        descriptor, is_named = _create(named)
        try:
            with open(descriptor, "wb") as file:  # noqa: PTH123 (a descriptor is no path)
                yield file
                file.flush()
                os.fsync(descriptor)
                if not is_named:
                    _name(descriptor, named)
                    is_named = True
            named.replace(target)
            is_named = False
        finally:
            if is_named:
                named.unlink(missing_ok=True)
        _sync_folder(target.parent)
    except ArchiveWriteError:
        raise
    except OSError as error:
        raise ArchiveWriteError(path, error) from error


def _create(named: Path) -> tuple[int, bool]:
    """A descriptor of a new file in the folder, and whether the file has its temporary name already."""
    unnamed = getattr(os, "O_TMPFILE", 0)
    if unnamed and _DESCRIPTORS.is_dir():
        with contextlib.suppress(IsADirectoryError, PermissionError, NotImplementedError, OSError):
            return os.open(named.parent, unnamed | os.O_RDWR, 0o666), False
    flags = os.O_CREAT | os.O_EXCL | os.O_RDWR | getattr(os, "O_BINARY", 0)
    return os.open(named, flags, 0o666), True


def _name(descriptor: int, named: Path) -> None:
    """Gives a file without a name its temporary one."""
    folder = os.open(named.parent, os.O_RDONLY)
    try:
        # Without `dst_dir_fd` Python ignores `follow_symlinks` and links the link (python/cpython#81793).
        source = _DESCRIPTORS / str(descriptor)
        os.link(source, named.name, dst_dir_fd=folder, follow_symlinks=True)
    finally:
        os.close(folder)


def _sync_folder(folder: Path) -> None:
    """Makes the new name last through a power cut, where the system can."""
    with contextlib.suppress(OSError):
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
