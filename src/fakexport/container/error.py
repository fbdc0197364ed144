"""Errors of archives."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

from fakexport.diagnostics import escaped
from fakexport.documents import DocumentError
from fakexport.error import FakexportError


class ArchiveError(FakexportError, ValueError):
    """A file is refused. The text is one line: the path, what is wrong, and where in the file.

    Args:
        path: The file, as the caller named it.
        what: What is wrong, as a sentence without capital and period.
        where: The record or field; empty for the whole file.
        is_trust_missing: Whether the file would be read with `trust=True`.
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
    """Add the archive and the record to errors of a document."""
    try:
        yield
    except DocumentError as error:
        raise ArchiveError(path, str(error), record, is_trust_missing=error.is_trust_missing) from error
