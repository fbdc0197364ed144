"""Zips that say whatever a test wants: built from the zip standard alone, not from the code under test."""

from __future__ import annotations

import struct
import zlib
from dataclasses import dataclass, field, replace


@dataclass
class Part:
    """One record. What is None follows from the rest; the other fields lie when a test sets them."""

    name: bytes
    data: bytes = b""
    method: int = 0
    flags: int | None = None
    crc: int | None = None
    size: int | None = None
    packed: int | None = None
    attributes: int = 0
    comment: bytes = b""
    extra: bytes = b""
    disk: int = 0
    before: bytes = b""  # bytes in front of the local header
    header: int | None = None  # the offset that the central directory names
    local_name: bytes | None = None
    local_method: int | None = None
    descriptor: bytes | None = None
    padding: bytes | None = None
    date: int = 0x21

    def __post_init__(self) -> None:
        content = self.data
        if self.method == 8 and self.size is None:
            packer = zlib.compressobj(6, zlib.DEFLATED, -15)
            self.data = packer.compress(content) + packer.flush()
        self.crc = zlib.crc32(content) if self.crc is None else self.crc
        self.size = len(content) if self.size is None else self.size
        self.packed = len(self.data) if self.packed is None else self.packed
        self.flags = (0x808 if self.size else 0x800) if self.flags is None else self.flags


FRAME = (
    Part(b"model/.data/version", b"6\n"),
    Part(b"model/archive_format", b"pt2"),
    Part(b"model/archive_version", b"0"),
    Part(b"model/byteorder", b"little"),
)


@dataclass
class Forged:
    """A zip of these records; the counts and offsets of its end may lie."""

    parts: list[Part] = field(default_factory=list)
    with_frame: bool = True
    before_directory: bytes = b""
    behind_directory: bytes = b""
    behind: bytes = b""
    comment: bytes = b""
    count: int | None = None
    directory_bytes: int | None = None
    directory_offset: int | None = None
    disk: int = 0
    with_zip64: bool = True
    end_count: int | None = None

    def bytes(self) -> bytes:
        parts = [replace(part) for part in FRAME if self.with_frame] + self.parts
        body, directory = bytearray(), bytearray()
        for part in parts:
            body += part.before
            header = len(body)
            body += _local(part, header)
            directory += _central(part, header if part.header is None else part.header)
        body += self.before_directory
        offset = len(body) if self.directory_offset is None else self.directory_offset
        size = len(directory) if self.directory_bytes is None else self.directory_bytes
        count = len(parts) if self.count is None else self.count
        end_64 = struct.pack(
            "<4sQHHIIQQQQ", b"PK\6\6", 44, 0x31E, 45, self.disk, 0, count, count, size, offset
        )
        locator = struct.pack("<4sIQI", b"PK\6\7", 0, offset + size, 1)
        shown = min(count if self.end_count is None else self.end_count, 0xFFFF)
        low = 0xFFFFFFFF
        numbers = (self.disk, 0, shown, shown, min(size, low), min(offset, low), len(self.comment))
        end = struct.pack("<4sHHHHIIH", b"PK\5\6", *numbers)
        ends = (end_64 + locator if self.with_zip64 else b"") + end + self.comment
        return body + directory + self.behind_directory + ends + self.behind


def _local(part: Part, header: int) -> bytes:
    name = part.name if part.local_name is None else part.local_name
    method = part.method if part.local_method is None else part.local_method
    needed = 20 if part.method == 8 else 0
    start = header + 30 + len(name) + 4
    padding = b"Z" * (-start % 64) if part.padding is None else part.padding
    extra = b"FB" + struct.pack("<H", len(padding)) + padding
    fields = struct.pack(
        "<4sHHHHHIIIHH", b"PK\3\4", needed, part.flags, method, 0, part.date, 0, 0, 0, len(name), len(extra)
    )
    low = 0xFFFFFFFF
    descriptor = struct.pack("<4sIII", b"PK\7\x08", part.crc, part.packed & low, part.size & low)
    if part.descriptor is not None:
        descriptor = part.descriptor
    elif not part.size:
        descriptor = b""
    return fields + name + extra + part.data + descriptor


def _central(part: Part, header: int) -> bytes:
    low = 0xFFFFFFFF
    wide = [value for value in (part.size, part.packed, header) if value >= low]
    extra = part.extra or (struct.pack(f"<HH{len(wide)}Q", 1, 8 * len(wide), *wide) if wide else b"")
    needed = 20 if part.method == 8 else 0
    fields = struct.pack(
        "<4sHHHHHHIIIHHHHHII",
        b"PK\1\2",
        0,
        needed,
        part.flags,
        part.method,
        0,
        part.date,
        part.crc,
        min(part.packed, low),
        min(part.size, low),
        len(part.name),
        len(extra),
        len(part.comment),
        part.disk,
        0,
        part.attributes,
        min(header, low),
    )
    return fields + part.name + extra + part.comment
