"""Zip files from other writers, such as Python's `zipfile`, in one plain form; `central_directory` reads
torch's.

Only what every reader interprets in the same way is accepted: records one after the other from the first byte
    on, each with
a local header that agrees with the central directory. No extra fields, descriptors or comments, and no
zip64 parts.
"""

from __future__ import annotations

import stat
from collections.abc import Callable
from dataclasses import replace

from fakexport.container.central_directory import (
    RawEntry,
    check_names,
    check_sizes,
    legacy_name,
    parse_entry,
    read_entries,
)
from fakexport.container.error import ArchiveError
from fakexport.container.framing import (
    CENTRAL,
    DEFLATED,
    END,
    ENDS_BYTES,
    FLAG_UTF8,
    LOCAL,
    LOCATOR,
    STORED,
    Entry,
)
from fakexport.container.limits import Limits
from fakexport.container.record_name import fault_of_name

ReadAt = Callable[[int, int], bytes]

_LEVEL = 0x0006
"The writer's compression level; readers ignore it."
_VERSION = 20
_DOS_FOLDER = 0x10
_NOTHING_DEFLATED = b"\3\0"


def read_any_entries(path: str, read_at: ReadAt, file_bytes: int, limits: Limits) -> tuple[Entry, ...]:
    """Return the records in the order of the file, whether torch or another program wrote the zip.

    Args:
        path, read_at, file_bytes, limits: As for `read_entries`, and for what is raised.
    """
    if file_bytes >= ENDS_BYTES:
        tail = read_at(file_bytes - END.size - LOCATOR.size, END.size + LOCATOR.size)
        locator, end = tail[: LOCATOR.size], tail[LOCATOR.size :]
        is_plain = end[:4] == b"PK\5\6" and locator[:4] != b"PK\6\7"
        if is_plain and legacy_name(read_at, end, file_bytes) is None:
            return _read_plain(path, read_at, end, file_bytes, limits)
    return read_entries(path, read_at, file_bytes, limits)


def _read_plain(path: str, read_at: ReadAt, end: bytes, file_bytes: int, limits: Limits) -> tuple[Entry, ...]:
    _, disk, disk_of_directory, on_disk, count, size, offset, comment = END.unpack(end)
    if (disk, disk_of_directory, on_disk) != (0, 0, count):
        raise ArchiveError(path, "is one part of a multi-disk archive", "end record")
    if comment:
        raise ArchiveError(path, "has a comment", "end record")
    if count > limits.entries or size > limits.directory_bytes:
        raise ArchiveError(path, f"declares {count} entries in {size} bytes, which exceeds the limits")
    if offset + size + END.size != file_bytes:
        what = (
            "does not end where the end record begins: extra data before, after or in between, or truncated"
        )
        raise ArchiveError(path, what, "central directory")
    if count == 0:
        raise ArchiveError(path, "is an archive without records")
    text = read_at(offset, size)
    entries, position, start = [], 0, 0
    for number in range(count):
        raw, position = parse_entry(path, text, position, number, limits)
        _check_kind(path, raw)
        entry = _placed(path, read_at, raw, start, offset)
        start = entry.data + entry.packed
        entries.append(_without_nothing(read_at, entry))
    if (position, start) != (size, offset):
        raise ArchiveError(path, "has bytes that belong to no record", "central directory")
    check_names(path, [entry.name for entry in entries])
    check_sizes(path, entries, limits)
    return tuple(entries)


def _check_kind(path: str, raw: RawEntry) -> None:
    """Refuse an entry that is more than a plain one."""
    name = raw.entry.name
    if fault := fault_of_name(name):
        raise ArchiveError(path, fault, name)
    if len(raw.found) != CENTRAL.size + len(name.encode()) or raw.disk:
        raise ArchiveError(path, "has an extra field, a comment or a zip64 part", name)
    if raw.flags & ~(FLAG_UTF8 | _LEVEL) or raw.version > _VERSION:
        raise ArchiveError(path, "is encrypted, or needs a feature that a plain zip does not have", name)
    if raw.entry.method not in (STORED, DEFLATED):
        raise ArchiveError(path, f"is compressed with the unknown method {raw.entry.method}", name)
    if stat.S_IFMT(raw.attributes >> 16) not in (0, stat.S_IFREG) or raw.attributes & _DOS_FOLDER:
        raise ArchiveError(path, "is a link, a folder or a special file", name)


def _placed(path: str, read_at: ReadAt, raw: RawEntry, start: int, directory: int) -> Entry:
    """Return the entry with the offset of its bytes, once its local header agrees."""
    entry, name = raw.entry, raw.entry.name.encode()
    data = start + LOCAL.size + len(name)
    if entry.header != start or data + entry.packed > directory:
        raise ArchiveError(path, "does not follow the previous record, or overlaps it", entry.name)
    fields = LOCAL.unpack(read_at(start, LOCAL.size))
    signature, version, own_flags, method, _, _, crc, packed, size, name_bytes, extra_bytes = fields
    said = (method, crc, packed, size, own_flags, name_bytes, extra_bytes)
    wanted = (entry.method, entry.crc, entry.packed, entry.size, raw.flags, len(name), 0)
    if signature != b"PK\3\4" or version > _VERSION or said != wanted:
        raise ArchiveError(path, "its local header disagrees with the central directory", entry.name)
    if read_at(start + LOCAL.size, len(name)) != name:
        raise ArchiveError(path, "its local header has a different name", entry.name)
    return replace(entry, data=data)


def _without_nothing(read_at: ReadAt, entry: Entry) -> Entry:
    """Return an empty record as stored: `zipfile` compresses nothing to two bytes."""
    is_nothing = entry.method == DEFLATED and (entry.size, entry.crc, entry.packed) == (0, 0, 2)
    if is_nothing and read_at(entry.data, 2) == _NOTHING_DEFLATED:
        return replace(entry, method=STORED, packed=0)
    return entry
