"""Zips of other programs, such as Python's `zipfile`, in one plain form; `central_directory` reads torch's.

What every reader understands alike is accepted: records one after the other from the first byte on, each with
a local header that says what the central directory says. No extra fields, descriptors or comments, and no
zip64 parts.
"""

from __future__ import annotations

import stat
from collections.abc import Callable
from dataclasses import replace

from fakexport.archive.container.central_directory import (
    check_names,
    check_sizes,
    legacy_name,
    read_entries,
)
from fakexport.archive.container.framing import (
    CENTRAL,
    DEFLATED,
    END,
    ENDS_BYTES,
    FLAG_UTF8,
    LOCAL,
    LOCATOR,
    SATURATED,
    STORED,
    Entry,
)
from fakexport.archive.container.limits import Limits
from fakexport.archive.container.record_name import fault_of_name
from fakexport.archive.error import ArchiveError

__all__ = ["read_any_entries"]

ReadAt = Callable[[int, int], bytes]

_LEVEL = 0x0006
"""How hard the writer compressed; readers ignore it."""
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
        raise ArchiveError(path, "is one part of an archive over several disks", "end record")
    if comment:
        raise ArchiveError(path, "has a comment", "end record")
    if count > limits.entries or size > limits.directory_bytes:
        raise ArchiveError(path, f"declares {count} entries in {size} bytes, which is beyond the limits")
    if offset + size + END.size != file_bytes:
        what = "does not end where the end record begins: data before, after or between, or truncated"
        raise ArchiveError(path, what, "central directory")
    if count == 0:
        raise ArchiveError(path, "is an archive without records")
    text = read_at(offset, size)
    entries, position, start = [], 0, 0
    for number in range(count):
        entry, flags, position = _parse(path, text, position, number, limits)
        entry = _placed(path, read_at, entry, flags, start, offset)
        start = entry.data + entry.packed
        entries.append(_without_nothing(read_at, entry))
    if (position, start) != (size, offset):
        raise ArchiveError(path, "has bytes that belong to no record", "central directory")
    check_names(path, [entry.name for entry in entries])
    check_sizes(path, entries, limits)
    return tuple(entries)


def _parse(path: str, text: bytes, start: int, number: int, limits: Limits) -> tuple[Entry, int, int]:
    """The entry that begins at `start` of the central directory, its flags, and where the next one begins."""
    where = f"central directory, entry {number}"
    if start + CENTRAL.size > len(text):
        raise ArchiveError(path, "is truncated", where)
    fields = CENTRAL.unpack_from(text, start)
    signature, _, version, flags, method, _, _, crc, packed, size = fields[:10]
    name_bytes, extra_bytes, comment_bytes, disk, _, attributes, header = fields[10:]
    position = start + CENTRAL.size + name_bytes
    if signature != b"PK\1\2" or position > len(text) or name_bytes > limits.name_bytes:
        raise ArchiveError(path, "does not begin as an entry does", where)
    name = text[start + CENTRAL.size : position].decode("ascii", errors="replace")
    if fault := fault_of_name(name):
        raise ArchiveError(path, fault, name)
    if extra_bytes or comment_bytes or disk or SATURATED in (packed, size, header):
        raise ArchiveError(path, "has an extra field, a comment or a zip64 part", name)
    if flags & ~(FLAG_UTF8 | _LEVEL) or version > _VERSION:
        raise ArchiveError(path, "is encrypted, or needs what a plain zip does not have", name)
    if method not in (STORED, DEFLATED):
        raise ArchiveError(path, f"is compressed by the unknown method {method}", name)
    if stat.S_IFMT(attributes >> 16) not in (0, stat.S_IFREG) or attributes & _DOS_FOLDER:
        raise ArchiveError(path, "is a link, a folder or a special file", name)
    return Entry(name, method, crc, size, packed, header, 0), flags, position


def _placed(path: str, read_at: ReadAt, entry: Entry, flags: int, start: int, directory: int) -> Entry:
    """The entry with the offset of its bytes, once its local header says the same."""
    name = entry.name.encode()
    data = start + LOCAL.size + len(name)
    if entry.header != start or data + entry.packed > directory:
        raise ArchiveError(path, "does not follow the record before it, or overlaps", entry.name)
    fields = LOCAL.unpack(read_at(start, LOCAL.size))
    signature, version, own_flags, method, _, _, crc, packed, size, name_bytes, extra_bytes = fields
    said = (method, crc, packed, size, own_flags, name_bytes, extra_bytes)
    wanted = (entry.method, entry.crc, entry.packed, entry.size, flags, len(name), 0)
    if signature != b"PK\3\4" or version > _VERSION or said != wanted:
        raise ArchiveError(path, "its local header disagrees with the central directory", entry.name)
    if read_at(start + LOCAL.size, len(name)) != name:
        raise ArchiveError(path, "its local header has another name", entry.name)
    return replace(entry, data=data)


def _without_nothing(read_at: ReadAt, entry: Entry) -> Entry:
    """An empty record is stored: `zipfile` compresses nothing to two bytes."""
    is_nothing = entry.method == DEFLATED and (entry.size, entry.crc, entry.packed) == (0, 0, 2)
    if is_nothing and read_at(entry.data, 2) == _NOTHING_DEFLATED:
        return replace(entry, method=STORED, packed=0)
    return entry
