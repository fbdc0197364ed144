"""Read the entries of an untrusted zip file, and account for every byte outside the records.

A zip file stores most metadata twice, and readers differ in which copy they use. This reader requires that
both copies agree, and that they are the exact bytes that torch or fakexport writes; see `framing`.
"""

from __future__ import annotations

import stat
import struct
from collections.abc import Callable
from dataclasses import dataclass, replace

from fakexport.files.container.contents import LEGACY, UNTRUSTED, fault_of_name, fault_of_names
from fakexport.files.container.error import ArchiveError
from fakexport.files.container.framing import (
    ALIGNMENT,
    CENTRAL,
    DEFLATED,
    END,
    END_64,
    ENDS_BYTES,
    FIRST_OF_1980,
    FLAG_UTF8,
    LOCAL,
    LOCATOR,
    NO_DATE,
    SATURATED,
    STORED,
    Entry,
    aligned_data,
    central_record,
    descriptor,
    end_records,
    local_header,
)
from fakexport.files.container.limits import MIB, Limits

ReadAt = Callable[[int, int], bytes]

_ENCRYPTED = 0x2041
_MOST_PADDING = 4096
_KINDS = {stat.S_IFLNK: "is a symbolic link", stat.S_IFDIR: "is a folder", stat.S_IFREG: "has a file mode"}
_SIGNATURES = (b"PK\5\6", b"PK\6\6", b"PK\6\7")


@dataclass(frozen=True)
class _RawEntry:
    """An unverified entry of the central directory. `found` contains its bytes."""

    flags: int
    method: int
    attributes: int
    entry: Entry
    found: bytes
    has_comment: bool
    disk: int


def read_entries(path: str, read_at: ReadAt, file_bytes: int, limits: Limits) -> tuple[Entry, ...]:
    """Return the entries of all records, in file order. Limits are checked before memory is allocated."""
    count, directory_bytes, directory = _read_end(path, read_at, file_bytes, limits)
    text = read_at(directory, directory_bytes)
    date = int.from_bytes(text[14:16], "little")
    if date not in (NO_DATE, FIRST_OF_1980):
        raise ArchiveError(path, "its records have dates, so it was not written by torch or fakexport")
    position = 0
    raws = []
    for number in range(count):
        raw, position = _parse_entry(path, text, position, number, limits)
        _check_kind(path, raw)
        raws.append(raw)
    if position != len(text):
        raise ArchiveError(path, f"{len(text) - position} bytes follow the last entry", "central directory")
    _check_names(path, [raw.entry.name for raw in raws])
    _check_sizes(path, [raw.entry for raw in raws], limits)
    return _place(path, read_at, raws, directory, date)


def _read_end(path: str, read_at: ReadAt, file_bytes: int, limits: Limits) -> tuple[int, int, int]:
    """Return the number of entries, and the size and offset of the central directory."""
    if file_bytes < ENDS_BYTES:
        raise ArchiveError(
            path, f"{file_bytes} bytes are too few for an archive: the file is empty or truncated"
        )
    text = read_at(file_bytes - ENDS_BYTES, ENDS_BYTES)
    end_64, rest = text[: END_64.size], text[END_64.size :]
    locator, end = rest[: LOCATOR.size], rest[LOCATOR.size :]
    if end[:4] != _SIGNATURES[0]:
        raise ArchiveError(
            path, "does not end like a zip file: not an archive, truncated, or followed by other data"
        )
    if END.unpack(end)[1:3] != (0, 0):
        raise ArchiveError(path, "is one part of a multi-disk archive", "end record")
    if end[-2:] != b"\0\0":
        raise ArchiveError(path, "has a comment", "end record")
    if (end_64[:4], locator[:4]) != _SIGNATURES[1:]:
        legacy = _legacy_name(read_at, end, file_bytes)
        if legacy:
            raise ArchiveError(path, f"{LEGACY} ({legacy}), {UNTRUSTED}", is_trust_missing=True)
        what = "has no zip64 end record, so it was not written by torch or fakexport"
        raise ArchiveError(path, what)
    *_, disk, disk_of_directory, on_disk, count, size, offset = END_64.unpack(end_64)
    if (disk, disk_of_directory, on_disk) != (0, 0, count):
        raise ArchiveError(path, "is one part of a multi-disk archive", "zip64 end record")
    if count > limits.entries:
        raise ArchiveError(path, f"declares {count} entries; the limit is {limits.entries}")
    if size > limits.directory_bytes:
        raise ArchiveError(path, f"declares {size} bytes; the limit is {limits.directory_bytes}", "directory")
    if offset + size + ENDS_BYTES != file_bytes:
        what = "does not end where the end records begin: the file has extra data or is truncated"
        raise ArchiveError(path, what, "central directory")
    if text != end_records(count, size, offset):
        raise ArchiveError(path, "its end records disagree with each other", "end record")
    if count == 0:
        raise ArchiveError(path, "is an archive without records")
    if size < count * CENTRAL.size:
        raise ArchiveError(path, f"{size} bytes are too few for {count} entries", "central directory")
    return count, size, offset


def _legacy_name(read_at: ReadAt, end: bytes, file_bytes: int) -> str | None:
    """Return the name of a record that exists only in the layout before torch 2.8, or None."""
    *_, size, offset, _ = END.unpack(end)
    if offset + size > file_bytes:
        return None
    text = read_at(offset, min(size, MIB))
    names = ("serialized_exported_program.json", "serialized_state_dict.pt", "serialized_state_dict.json")
    return next((name for name in names if name.encode() in text), None)


def _parse_entry(path: str, text: bytes, start: int, number: int, limits: Limits) -> tuple[_RawEntry, int]:
    """Parse the entry at the offset `start` of the central directory. Also return the next entry's offset."""
    where = f"central directory, entry {number}"
    if start + CENTRAL.size > len(text):
        raise ArchiveError(path, "is truncated", where)
    fields = CENTRAL.unpack_from(text, start)
    signature, _, _, flags, method, _, _, crc, packed, size = fields[:10]
    name_bytes, extra_bytes, comment_bytes, disk, _, attributes, header = fields[10:]
    if signature != b"PK\1\2":
        raise ArchiveError(path, "does not start with an entry header", where)
    name_end = start + CENTRAL.size + name_bytes
    end = name_end + extra_bytes + comment_bytes
    if end > len(text):
        raise ArchiveError(path, "is truncated", where)
    if name_bytes > limits.name_bytes:
        what = f"the name has {name_bytes} bytes; the limit is {limits.name_bytes}"
        raise ArchiveError(path, what, where)
    try:
        name = text[start + CENTRAL.size : name_end].decode()
    except UnicodeDecodeError:
        raise ArchiveError(path, "the name is not UTF-8", where) from None
    extra = text[name_end : name_end + extra_bytes]
    size, packed, header = _widen(path, name, extra, [size, packed, header])
    entry = Entry(name, method, crc, size, packed, header, 0)
    return _RawEntry(flags, method, attributes, entry, text[start:end], comment_bytes > 0, disk), end


def _widen(path: str, name: str, extra: bytes, values: list[int]) -> list[int]:
    """Replace values that exceed 32 bits with the values in the zip64 extra field."""
    wide = values.count(SATURATED)
    if not wide:
        if extra:
            raise ArchiveError(path, "has an unexpected extra field", name)
        return values
    if len(extra) != 4 + 8 * wide or struct.unpack_from("<2H", extra) != (1, 8 * wide):
        raise ArchiveError(path, "its zip64 field does not match the entry", name)
    replacements = iter(struct.unpack_from(f"<{wide}Q", extra, 4))
    return [next(replacements) if value == SATURATED else value for value in values]


def _check_kind(path: str, raw: _RawEntry) -> None:
    """Reject an entry that is not a plain record, such as an encrypted record or a link."""
    name = raw.entry.name
    if fault := fault_of_name(name):
        raise ArchiveError(path, fault, name)
    if raw.flags & _ENCRYPTED:
        raise ArchiveError(path, "is encrypted", name)
    if raw.method not in (STORED, DEFLATED):
        raise ArchiveError(path, f"is compressed with the unknown method {raw.method}", name)
    if raw.disk:
        raise ArchiveError(path, f"is on disk {raw.disk}", name)
    if raw.has_comment:
        raise ArchiveError(path, "has a comment", name)
    if kind := stat.S_IFMT(raw.attributes >> 16):
        raise ArchiveError(path, _KINDS.get(kind, "is a special file"), name)
    if not raw.flags & FLAG_UTF8:
        raise ArchiveError(path, "does not declare its name as UTF-8", name)


def _check_names(path: str, names: list[str]) -> None:
    """Check that all names are in the same folder and unambiguous."""
    folder = names[0].partition("/")[0]
    for name in names:
        if "/" not in name:
            raise ArchiveError(path, "is not in a folder", name)
        if name.partition("/")[0] != folder:
            raise ArchiveError(path, f"is in a different folder than `{folder}`", name)
    if found := fault_of_names(names):
        raise ArchiveError(path, found[1], found[0])


def _check_sizes(path: str, entries: list[Entry], limits: Limits) -> None:
    """Check that no record exceeds the limits."""
    inflated = 0
    for entry in entries:
        if entry.method == STORED:
            if entry.packed != entry.size:
                what = (
                    f"is stored uncompressed, but declares {entry.size} bytes of content and {entry.packed} "
                    "bytes in the file"
                )
                raise ArchiveError(path, what, entry.name)
            continue
        if not entry.size or not entry.packed:
            raise ArchiveError(path, "is compressed but empty", entry.name)
        if entry.size > limits.record_bytes:
            what = f"declares {entry.size} bytes; the limit is {limits.record_bytes}"
            raise ArchiveError(path, what, entry.name)
        if entry.size > max(MIB, entry.packed * limits.ratio):
            what = f"declares {entry.size} bytes, compressed to {entry.packed}: a ratio above {limits.ratio}"
            raise ArchiveError(path, what, entry.name)
        inflated += entry.size
        if inflated > limits.inflated_bytes:
            what = f"the compressed records declare more than {limits.inflated_bytes} bytes in total"
            raise ArchiveError(path, what)


def _place(path: str, read_at: ReadAt, raws: list[_RawEntry], directory: int, date: int) -> tuple[Entry, ...]:
    """Return the entries with the offsets of their data.

    Check that both copies of each entry agree, and that there are no bytes between the records.
    """
    placed = []
    position = 0
    for raw in raws:
        entry = raw.entry
        if entry.header != position:
            verb = "overlaps" if entry.header < position else "does not follow"
            what = f"{verb} the previous record: it begins at {entry.header}, not at {position}"
            raise ArchiveError(path, what, entry.name)
        entry = replace(entry, data=_data_offset(path, read_at, entry, directory))
        position = entry.end
        if position > directory:
            what = "reaches into the central directory: truncated or overlapping"
            raise ArchiveError(path, what, entry.name)
        if raw.found != central_record(entry, date):
            what = "its entry in the central directory is not what torch or fakexport writes"
            raise ArchiveError(path, what, entry.name)
        header = read_at(entry.header, entry.data - entry.header)
        if header != local_header(entry, date):
            what = "its local header disagrees with the central directory"
            raise ArchiveError(path, what, entry.name)
        behind = read_at(entry.data + entry.packed, position - entry.data - entry.packed)
        if behind != descriptor(entry):
            raise ArchiveError(path, "its data descriptor disagrees with the central directory", entry.name)
        placed.append(entry)
    if position != directory:
        what = f"{directory - position} bytes are between the last record and the central directory"
        raise ArchiveError(path, what)
    return tuple(placed)


def _data_offset(path: str, read_at: ReadAt, entry: Entry, directory: int) -> int:
    """Return the offset of a record's data, according to the record's local header."""
    if entry.header + LOCAL.size > directory:
        raise ArchiveError(path, "its local header reaches into the central directory", entry.name)
    fields = LOCAL.unpack(read_at(entry.header, LOCAL.size))
    name_bytes, extra_bytes = fields[-2:]
    if fields[0] != b"PK\3\4" or name_bytes != len(entry.name.encode()):
        raise ArchiveError(path, "its local header disagrees with the central directory", entry.name)
    data = entry.header + LOCAL.size + int(name_bytes) + int(extra_bytes)
    least = aligned_data(entry.name, entry.header, entry.size, entry.packed)
    if data % ALIGNMENT or not least <= data < least + _MOST_PADDING:
        what = f"its bytes begin at {data}; with torch's padding they would begin at {least}"
        raise ArchiveError(path, what, entry.name)
    return data
