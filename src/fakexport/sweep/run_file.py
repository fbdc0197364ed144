"""`RUN.jsonl`: what a sweep found, a line for each check, which stays when the sweep is killed."""

from __future__ import annotations

import dataclasses
import io
import json
import math
import os
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from fakexport.documents import (
    DocumentError,
    decimal,
    entries,
    field,
    integer,
    mapping,
    one_of,
    optional,
    parse_json,
    reader_of,
    text,
)
from fakexport.error import FakexportError
from fakexport.files import kind_of, lock_or_refuse, read_file

SCHEMA = "fakexport.sweep/1"
"""Name and version of a line. The version rises when a field changes its meaning or goes away."""

_MOST_BYTES = 1 << 30

STATUSES = ("exports", "fails", "refused", "out of time", "out of memory", "crashes")
"""What became of a check, from good to bad."""


class RunFileError(FakexportError, ValueError):
    """A file is not that of a sweep, or would be overwritten. One line."""


@dataclass(frozen=True, kw_only=True)
class SweepRecord:
    """A line of the file.

    Args:
        command: The check, as a command; see `SweepItem.command`.
        status: One of `STATUSES`.
        reason: One line, empty where it exports.
        seconds: How long its process ran.
        peak_bytes: The most resident memory of its process.
        report: What `fakexport check --format json` prints; None where it printed nothing.
        versions: The packages that the check ran with, whether it reported any or not; empty where it
            took down the node that it ran on.
        machine: Where it ran: system, processor and memory; as `versions`.
        output: The end of what a check that crashed wrote to stderr; empty for all others.
    """

    command: str
    status: str
    reason: str
    seconds: float
    peak_bytes: int
    report: dict[str, Any] | None
    versions: dict[str, str] = dataclasses.field(default_factory=dict)
    machine: str = ""
    output: str = ""


def read_run(path: Path) -> dict[str, SweepRecord]:
    """Return what a file holds, by command. A last line that was not written to its end is left out.

    Raises:
        RunFileError: a line is not one of a sweep, or a check is there twice.
        OSError: it cannot be read.
    """
    found: dict[str, SweepRecord] = {}
    for number, line in enumerate(io.BytesIO(read_file(path, most_bytes=_MOST_BYTES)), 1):
        if not line.endswith(b"\n"):
            break
        try:
            fields = mapping(parse_json(line))
            field(fields, "schema", one_of((SCHEMA,), "format that this version reads"))
            record = _record({name: value for name, value in fields.items() if name != "schema"})
        except DocumentError as error:
            raise RunFileError(f"{path}:{number}: not a line of a sweep: {error}") from error
        if record.command in found:
            raise RunFileError(f"{path}:{number}: the check is there twice")
        found[record.command] = record
    return found


def _seconds(value: Any) -> float:
    seconds = decimal(value)
    if not 0 <= seconds < math.inf:
        raise DocumentError("expected a number of seconds")
    return seconds


# What is in the report is checked where it is used.
_record = reader_of(
    SweepRecord,
    status=one_of(STATUSES, "status"),
    seconds=_seconds,
    peak_bytes=lambda value: integer(value, 0),
    report=lambda value: optional(value, mapping),
    versions=lambda value: entries(value, text),
)


class RunFile:
    """The file of a sweep that goes on: each line is on the disk before the next check counts as done.

    Args:
        path: A new file, or that of a sweep that ended early.
        resume: Whether it may exist.
    Raises:
        RunFileError: it exists without `resume`, is not the file of a sweep, or another process writes it.
    """

    def __init__(self, path: Path, *, resume: bool) -> None:
        flags = os.O_RDWR | os.O_CREAT | os.O_APPEND | getattr(os, "O_NONBLOCK", 0)
        self._file = os.open(path, flags, 0o644)
        try:
            self.records = self._begin(path, resume)
        except BaseException:
            self.close()
            raise

    def _begin(self, path: Path, resume: bool) -> dict[str, SweepRecord]:
        if (kind := kind_of(os.fstat(self._file).st_mode)) is not None:
            raise RunFileError(f"{path} is {kind}, not a regular file")
        try:
            lock_or_refuse(self._file)
        except BlockingIOError:
            raise RunFileError(f"{path} is being written by another sweep") from None
        if os.fstat(self._file).st_size and not resume:
            raise RunFileError(f"{path} exists: go on with --resume, or name another file")
        records = read_run(path)
        os.ftruncate(self._file, path.read_bytes().rfind(b"\n") + 1)
        return records

    def add(self, record: SweepRecord) -> None:
        """Append a line."""
        line = json.dumps({"schema": SCHEMA, **asdict(record)}, separators=(",", ":")).encode() + b"\n"
        while line:
            line = line[os.write(self._file, line) :]
        os.fsync(self._file)
        self.records[record.command] = record

    def close(self) -> None:
        os.close(self._file)
