"""`RUN.jsonl`: the results of a sweep, one line per check, preserved if the sweep is killed."""

from __future__ import annotations

import dataclasses
import io
import json
import math
import os
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any

from fakexport.error import FakexportError
from fakexport.files import kind_of, lock_or_refuse, read_file
from fakexport.files.documents import (
    DocumentError,
    Size,
    decimal,
    field,
    mapping,
    one_of,
    parse_json,
    reader_of,
)

SCHEMA = "fakexport.sweep/1"
"""Name and version of the line format. The version increases when a field changes its meaning or is removed.
"""

_MOST_BYTES = 1 << 30

STATUSES = ("exports", "fails", "refused", "out of time", "out of memory", "crashes")
"""Outcomes of a check, from good to bad."""


class RunFileError(FakexportError, ValueError):
    """A file is not a run file of a sweep, or would be overwritten. The message is one line."""


@dataclass(frozen=True, kw_only=True)
class SweepRecord:
    """One line of a run file: the result of one check.

    Args:
        command: The check, as a command; see `SweepItem.command`.
        status: One of `STATUSES`.
        reason: One line with the reason; empty if the model exports.
        seconds: Run time of the check's process.
        peak_bytes: Peak resident memory of the check's process.
        report: Output of `fakexport check --format json`; None without output.
        versions: Package versions of the check, even if it has no report; empty if it crashed its node.
        machine: System, processor and memory; empty in the same case as `versions`.
        output: The end of stderr if the check crashed; otherwise empty.
    """

    command: str
    status: Annotated[str, one_of(STATUSES, "status")]
    reason: str
    seconds: Annotated[float, _seconds]
    peak_bytes: Size
    # The content of the report is validated where it is used.
    report: Annotated[dict[str, Any], mapping] | None
    versions: dict[str, str] = dataclasses.field(default_factory=dict)
    machine: str = ""
    output: str = ""


def read_run(path: Path) -> dict[str, SweepRecord]:
    """Return the records of a file by command. An incomplete last line is ignored.

    Raises:
        RunFileError: a line is invalid, or a check occurs twice.
        OSError: the file cannot be read.
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
            raise RunFileError(
                f"{path}:{number}: cannot read this line as output of `fakexport sweep`: {error}"
            ) from error
        if record.command in found:
            raise RunFileError(f"{path}:{number}: duplicate check")
        found[record.command] = record
    return found


def _seconds(value: Any) -> float:
    seconds = decimal(value)
    if not 0 <= seconds < math.inf:
        raise DocumentError("expected a number of seconds")
    return seconds


_record = reader_of(SweepRecord)


class RunFile:
    """The file of a running sweep. Each line is flushed to disk before the next one is written.

    Args:
        path: A new file, or the file of an interrupted sweep.
        resume: Whether the file may exist.
    Raises:
        RunFileError: the file exists without `resume`, is not the file of a sweep, or is being written by
            another process.
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
            raise RunFileError(f"{path} exists: use --resume to continue it, or choose another file")
        records = read_run(path)
        os.ftruncate(self._file, path.read_bytes().rfind(b"\n") + 1)
        return records

    def add(self, record: SweepRecord) -> None:
        line = json.dumps({"schema": SCHEMA, **asdict(record)}, separators=(",", ":")).encode() + b"\n"
        while line:
            line = line[os.write(self._file, line) :]
        os.fsync(self._file)
        self.records[record.command] = record

    def close(self) -> None:
        os.close(self._file)
