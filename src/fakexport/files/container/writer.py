"""Write a container atomically. The same records produce the same bytes."""

from __future__ import annotations

import hashlib
import os
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from io import BufferedWriter

from fakexport.error import InvalidValue
from fakexport.files import new_file, open_regular
from fakexport.files.container.contents import FRAME_RECORDS, fault_of_name, fault_of_names
from fakexport.files.container.framing import (
    DEFLATED,
    FIRST_OF_1980,
    STORED,
    Entry,
    aligned_data,
    central_record,
    descriptor,
    end_records,
    local_header,
)
from fakexport.files.documents import Name, Sha256, Size

_LEVEL = 6
_WORTH_DEFLATING = 0.9


@dataclass(frozen=True)
class FileSlice:
    """A byte range of another file, which is copied when the container is written."""

    path: str | os.PathLike[str]
    offset: int
    length: int


@dataclass(frozen=True)
class Streamed:
    """Bytes that are produced piece by piece, so that only one piece is in memory at a time.

    The pieces may be iterated more than once, and have `length` bytes in total.
    """

    length: int
    pieces: Iterable[bytes | memoryview]


Content = bytes | FileSlice | Streamed


@dataclass(frozen=True)
class Digest:
    """Name, size and hash of a record.

    Args:
        name: Name of the record, without the archive's folder.
        size: Size of the content in bytes.
        sha256: Hash of the content, in hex.
    """

    name: Name
    size: Size
    sha256: Sha256


def write_container(
    path: str | os.PathLike[str],
    records: Mapping[str, Content],
    *,
    folder_name: str = "model",
    last: tuple[str, Callable[[tuple[Digest, ...]], bytes]] | None = None,
) -> tuple[Digest, ...]:
    """Write an archive that torch, Python's zipfile and `read_container` can read.

    Records are sorted by name. `*.json` records are compressed. All records begin at a multiple of 64 bytes,
    so that uncompressed records can be memory-mapped. The records that torch requires in every archive
    (`FRAME_RECORDS`) are added. The bytes only depend on the arguments and the version of zlib.

    Args:
        path: The file to write. An existing file is replaced when the new file is complete. The folder must
            exist.
        records: Record name without the folder -> content.
        folder_name: Name of the archive's single folder.
        last: The manifest, which is written last: its record name, and a function that takes the digests of
            all other records and returns the manifest's content.

    Returns:
        A digest of every record, in file order.

    Raises:
        ValueError: A name is invalid, or readers would confuse two names.
        FileWriteError: The file could not be written, or a `FileSlice` or `Streamed` has a different length
            than declared. An existing file is kept.
    """
    contents: dict[str, Content] = {**FRAME_RECORDS, **records}
    names = [*contents, *([last[0]] if last else [])]
    _check_names(folder_name, names)
    with new_file(path) as file:
        writer = _Writer(file, folder_name)
        for name in sorted(contents):
            writer.add(name, contents[name])
        if last:
            writer.add(last[0], last[1](tuple(writer.digests)))
        writer.finish()
    return tuple(writer.digests)


class _Writer:
    def __init__(self, file: BufferedWriter, folder: str) -> None:
        self._file = file
        self._folder = folder
        self._position = 0
        self._entries: list[Entry] = []
        self.digests: list[Digest] = []

    def add(self, name: str, content: Content) -> None:
        """Write one record, with its local header and descriptor."""
        method, packed = STORED, content
        if isinstance(content, bytes) and name.endswith(".json"):
            method, packed = _packed(content)
        size = _length(content)
        packed_size = _length(packed)
        full_name = f"{self._folder}/{name}"
        data = aligned_data(full_name, self._position, size, packed_size)
        entry = Entry(full_name, method, 0, size, packed_size, self._position, data)
        self._write(local_header(entry, FIRST_OF_1980))
        crc, sha256 = self._copy(name, packed, packed_size)
        if isinstance(content, bytes):
            crc, sha256 = zlib.crc32(content), hashlib.sha256(content).hexdigest()
        entry = Entry(full_name, method, crc, size, packed_size, entry.header, data)
        self._write(descriptor(entry))
        self._entries.append(entry)
        self.digests.append(Digest(name, size, sha256))

    def finish(self) -> None:
        """Write the central directory and the end records."""
        directory = self._position
        for entry in self._entries:
            self._write(central_record(entry, FIRST_OF_1980))
        self._write(end_records(len(self._entries), self._position - directory, directory))

    def _copy(self, name: str, content: Content, length: int) -> tuple[int, str]:
        """Write the content, and return its CRC-32 and sha256."""
        crc, digest, copied = 0, hashlib.sha256(), 0
        for piece in content_pieces(content):
            copied += len(piece)
            if copied > length:
                break
            crc = zlib.crc32(piece, crc)
            digest.update(piece)
            self._write(piece)
        if copied != length:
            given = "more" if copied > length else f"only {copied}"
            raise OSError(f"expected {length} bytes for `{name}`, got {given}")
        return crc, digest.hexdigest()

    def _write(self, piece: bytes | memoryview) -> None:
        self._position += self._file.write(piece)


def _packed(content: bytes) -> tuple[int, bytes]:
    """Compress content, unless that would save less than a tenth. Return the method and the bytes."""
    packer = zlib.compressobj(_LEVEL, zlib.DEFLATED, -zlib.MAX_WBITS)
    packed = packer.compress(content) + packer.flush()
    if len(packed) > _WORTH_DEFLATING * len(content):
        return STORED, content
    return DEFLATED, packed


def _length(content: Content) -> int:
    return len(content) if isinstance(content, bytes) else content.length


def content_pieces(content: Content) -> Iterator[bytes | memoryview]:
    """Yield the bytes of a record to write."""
    match content:
        case bytes():
            yield content
        case Streamed():
            for piece in content.pieces:
                yield piece.cast("B") if isinstance(piece, memoryview) else piece
        case FileSlice():
            with open_regular(content.path) as file:
                yield from file.pieces(content.offset, content.length)


def _check_names(folder: str, names: list[str]) -> None:
    if "/" in folder:
        raise InvalidValue(f"`{folder}` is not a valid folder name")
    for name in (f"{folder}/{name}" for name in names):
        if fault := fault_of_name(name):
            raise InvalidValue(f"{name!r}: {fault}")
    if found := fault_of_names(names):
        raise InvalidValue(f"{found[0]!r}: {found[1]}")
