"""Errors about archives."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

from fakexport.error import FakexportError
from fakexport.files import escaped
from fakexport.files.documents import DocumentError


class ArchiveError(FakexportError, ValueError):
    """An archive is invalid or rejected. The message is a single line with the path, the place and the fault.

    Args:
        path: Path of the file, as the caller passed it.
        what: The fault, as a clause without a period.
        where: The record or field; "" for the whole file.
        is_trust_missing: Whether `trust=True` would accept the file.
    """

    def __init__(
        self, path: str | os.PathLike[str], what: str, where: str = "", *, is_trust_missing: bool = False
    ) -> None:
        self.path = os.fspath(path)
        self.what = what
        self.where = where
        self.is_trust_missing = is_trust_missing
        line = f"{self.path}: {where}: {what}" if where else f"{self.path}: {what}"
        super().__init__(escaped(line))


@contextmanager
def faults_named(path: str, record: str) -> Iterator[None]:
    """Convert a `DocumentError` to an `ArchiveError`, which also names the archive and the record."""
    try:
        yield
    except DocumentError as error:
        raise ArchiveError(path, str(error), record, is_trust_missing=error.is_trust_missing) from error
