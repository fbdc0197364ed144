"""The bytes around the records of a `.pt2` zip, as torch's PyTorchFileWriter writes them.

The names, sizes, checksums and offsets of the records determine all other bytes. Therefore, a reader can
compute these bytes and compare them with the file. If they differ, neither torch nor fakexport wrote the
file.

torch's writer (2.13, miniz 3.0.2) has these properties: after each record that is not empty, a data
descriptor repeats the record's sizes and checksum; the extra field `FB` is padding so that the data of each
record begins at a multiple of 64 bytes; the end record is always in zip64 form.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass

STORED = 0
DEFLATED = 8
ALIGNMENT = 64
SATURATED = 0xFFFFFFFF

NO_DATE = 0
"""The date in torch's archives: month 0 and day 0."""
FIRST_OF_1980 = 0x21
"""The date in fakexport's archives: the first date that a zip file can express."""

LOCAL = struct.Struct("<4s5H3I2H")
CENTRAL = struct.Struct("<4s6H3I5H2I")
END_64 = struct.Struct("<4sQ2H2I4Q")
LOCATOR = struct.Struct("<4sIQI")
END = struct.Struct("<4s4H2IH")
ENDS_BYTES = END_64.size + LOCATOR.size + END.size

FLAG_DESCRIPTOR = 0x0008
FLAG_UTF8 = 0x0800
_PADDING_ID = b"FB"


@dataclass(frozen=True, slots=True)
class Entry:
    """One record of a container.

    Args:
        name: Name including the archive's folder, such as `model/data/weights/weight_0`.
        method: `STORED` or `DEFLATED`.
        crc, size: CRC-32 and size in bytes of the content.
        packed: Size of the data in the file in bytes, which is smaller than `size` if it is compressed.
        header, data: Offsets of the record's local header and of its data in the file.
    """

    name: str
    method: int
    crc: int
    size: int
    packed: int
    header: int
    data: int

    @property
    def end(self) -> int:
        """Offset of the first byte after the record and its descriptor."""
        return self.data + self.packed + len(descriptor(self))


def local_header(entry: Entry, date: int) -> bytes:
    """Return the local header of a record, including the padding up to `entry.data`."""
    name = entry.name.encode()
    extra = _zip64_extra(entry)
    padding = entry.data - (entry.header + LOCAL.size + len(name) + len(extra) + 4)
    how = _version_needed(entry), _flags(entry), entry.method
    fields = LOCAL.pack(b"PK\3\4", *how, 0, date, 0, 0, 0, len(name), len(extra) + 4 + padding)
    return fields + name + extra + _PADDING_ID + padding.to_bytes(2, "little") + b"Z" * padding


def aligned_data(entry_name: str, header: int, size: int, packed: int) -> int:
    """Return the offset of a record's data if its local header begins at `header`."""
    extra = _zip64_extra(Entry(entry_name, STORED, 0, size, packed, header, 0))
    start = header + LOCAL.size + len(entry_name.encode()) + len(extra) + 4
    return start + -start % ALIGNMENT


def descriptor(entry: Entry) -> bytes:
    """Return the data descriptor after a record."""
    if not entry.size:
        return b""
    form = "<4sI2Q" if _zip64_extra(entry) else "<4sI2I"
    return struct.pack(form, b"PK\7\x08", entry.crc, entry.packed, entry.size)


def central_record(entry: Entry, date: int) -> bytes:
    """Return a record's entry in the central directory."""
    name = entry.name.encode()
    extra = _zip64_extra(entry)
    how = _version_needed(entry), _flags(entry), entry.method
    packed, size, header = (min(number, SATURATED) for number in (entry.packed, entry.size, entry.header))
    sizes = packed, size, len(name), len(extra)
    fields = CENTRAL.pack(b"PK\1\2", 0, *how, 0, date, entry.crc, *sizes, 0, 0, 0, 0, header)
    return fields + name + extra


def end_records(count: int, directory_bytes: int, directory_offset: int) -> bytes:
    """Return the bytes after the central directory, up to the end of the file."""
    place = directory_bytes, directory_offset
    end_64 = END_64.pack(b"PK\6\6", END_64.size - 12, 0x031E, 0x2D, 0, 0, count, count, *place)
    locator = LOCATOR.pack(b"PK\6\7", 0, directory_offset + directory_bytes, 1)
    shown = min(count, 0xFFFF)
    end = END.pack(b"PK\5\6", 0, 0, shown, shown, *(min(number, SATURATED) for number in place), 0)
    return end_64 + locator + end


def _zip64_extra(entry: Entry) -> bytes:
    values = [number for number in (entry.size, entry.packed, entry.header) if number >= SATURATED]
    if not values:
        return b""
    return struct.pack(f"<2H{len(values)}Q", 1, 8 * len(values), *values)


def _version_needed(entry: Entry) -> int:
    return 20 if entry.method == DEFLATED else 0


def _flags(entry: Entry) -> int:
    return FLAG_UTF8 | (FLAG_DESCRIPTOR if entry.size else 0)
