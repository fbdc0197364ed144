"""The bytes around the records of a `.pt2` zip, as torch's PyTorchFileWriter lays them out.

Every byte that is not a record's follows from the names, sizes, checksums and offsets, so a reader can build
it again and compare: whatever differs was not written by torch or by fakexport. Peculiarities of torch's
    writer
(seen on 2.13, miniz 3.0.2): sizes and checksum of a record follow it, in a data descriptor, instead of
preceding it; an empty record has no descriptor; the extra field `FB` pads each record to 64 bytes; the end
has its zip64 form even where the plain one would do.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass

STORED = 0
DEFLATED = 8
ALIGNMENT = 64
SATURATED = 0xFFFFFFFF

NO_DATE = 0
"""The date that torch writes: month 0 and day 0."""
FIRST_OF_1980 = 0x21
"The date that fakexport writes, the first that a zip file can express."

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
        name: With the archive's folder: `model/data/weights/weight_0`.
        method: `STORED` or `DEFLATED`.
        crc: CRC-32 of the content.
        size: Bytes of the content.
        packed: Bytes that it takes in the file.
        header: Offset of its local header in the file.
        data: Offset of its bytes in the file.
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
    """Return the bytes before a record, including the padding to `entry.data`."""
    name = entry.name.encode()
    extra = _zip64_extra(entry)
    padding = entry.data - (entry.header + LOCAL.size + len(name) + len(extra) + 4)
    how = _version_needed(entry), _flags(entry), entry.method
    fields = LOCAL.pack(b"PK\3\4", *how, 0, date, 0, 0, 0, len(name), len(extra) + 4 + padding)
    return fields + name + extra + _PADDING_ID + padding.to_bytes(2, "little") + b"Z" * padding


def aligned_data(entry_name: str, header: int, size: int, packed: int) -> int:
    """Return where the bytes of a record begin whose local header begins at `header`."""
    extra = _zip64_extra(Entry(entry_name, STORED, 0, size, packed, header, 0))
    start = header + LOCAL.size + len(entry_name.encode()) + len(extra) + 4
    return start + -start % ALIGNMENT


def descriptor(entry: Entry) -> bytes:
    """Return the bytes after a record."""
    if not entry.size:
        return b""
    form = "<4sI2Q" if _zip64_extra(entry) else "<4sI2I"
    return struct.pack(form, b"PK\7\x08", entry.crc, entry.packed, entry.size)


def central_record(entry: Entry, date: int) -> bytes:
    """Return the central directory's entry for a record."""
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
