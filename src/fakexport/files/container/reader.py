"""Open the zip file of a `.pt2` archive as a set of named records. The file is untrusted."""

from __future__ import annotations

import hashlib
import mmap
import os
import zlib
from collections.abc import Iterable, Iterator, Mapping
from types import TracebackType
from typing import Any

from fakexport.error import FakexportError
from fakexport.files import RegularFile, open_regular
from fakexport.files.container.central_directory import read_entries
from fakexport.files.container.contents import (
    FRAME_RECORDS,
    UNTRUSTED,
    is_object_record,
    is_payload_config,
    legacy_layout,
    refused_names,
)
from fakexport.files.container.error import ArchiveError
from fakexport.files.container.framing import STORED, Entry
from fakexport.files.container.limits import MIB, Limits
from fakexport.files.container.writer import Streamed
from fakexport.files.documents import DocumentError, parse_json


class InflateError(FakexportError, ValueError):
    """The compressed data is not a single deflate stream with the declared size."""


def inflate(pieces: Iterable[bytes], size: int) -> Iterator[bytes]:
    """Decompress a raw deflate stream, and yield the content in pieces of at most 1 MiB.

    No more than the declared size is produced. Raise if the bytes are not a deflate stream, the size differs,
    bytes follow the stream, or the unused bits of its last byte are not 0.
    """
    stream = zlib.decompressobj(-zlib.MAX_WBITS)
    left = size
    for content in _steps(stream, pieces):
        left -= len(content)
        if left < 0:
            raise InflateError(f"inflates to more than the {size} bytes that it declares")
        yield content
    if left:
        raise InflateError(f"inflates to {size - left} bytes but declares {size}")


def _steps(stream: zlib._Decompress, pieces: Iterable[bytes]) -> Iterator[bytes]:
    held = b""
    for piece in pieces:
        # Hold back the last byte of each piece, because the very last byte is decompressed separately.
        yield from _drain(stream, held + piece[:-1])
        if stream.eof:
            raise InflateError("its compressed bytes are followed by other data")
        held = piece[-1:]
    before = stream.copy()
    ending = list(_drain(stream, held))
    if not stream.eof:
        raise InflateError("its compressed bytes are truncated")
    if stream.unused_data or _has_idle_bit(before, held, ending):
        raise InflateError("its compressed bytes are followed by other data")
    yield from ending


def _drain(stream: zlib._Decompress, packed: bytes) -> Iterator[bytes]:
    """Decompress these bytes, and yield the output in pieces of at most 1 MiB."""
    while True:
        try:
            content = stream.decompress(packed, MIB)
        except zlib.error as error:
            raise InflateError(f"its compressed bytes are damaged: {error}") from None
        if content:
            yield content
        if stream.eof or (len(content) < MIB and not stream.unconsumed_tail):
            return
        packed = stream.unconsumed_tail


def _has_idle_bit(before: zlib._Decompress, last: bytes, ending: list[bytes]) -> bool:
    """Return whether the last byte's highest set bit is after the end of the stream.

    Compressors set the unused bits after the end to 0, and no checksum covers them.
    """
    value = last[0]
    if not value:
        return False
    cleared = bytes([value & ~(1 << (value.bit_length() - 1))])
    try:
        return list(_drain(before, cleared)) == ending and before.eof
    except InflateError:
        return False


_VERSIONS = {b"6\n", b"5\n", b"4\n", b"3\n"}


class Container:
    """An open archive whose layout has been checked. Create it with `read_container` in a `with` statement.

    Records are read on request. Their names are relative to the archive's folder, such as
    `models/model.json`.

    Args:
        path: Path of the file, as the caller passed it.
        folder: Name of the single folder that contains all records.
        entries: The entries of the records by name, in file order.
    """

    def __init__(self, path: str, file: RegularFile, limits: Limits) -> None:
        self.path = path
        self.limits = limits
        self._file = file
        self._size = file.size
        self._map: mmap.mmap | None = None
        self._digests: Mapping[str, str] = {}
        entries = read_entries(path, self._read_at, self._size, limits)
        self.folder = entries[0].name.partition("/")[0]
        self.entries: Mapping[str, Entry] = {entry.name.partition("/")[2]: entry for entry in entries}

    @property
    def file_bytes(self) -> int:
        return self._size

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the records, in file order."""
        return tuple(self.entries)

    def size(self, name: str) -> int:
        """Return the size of a record's content in bytes."""
        return self._entry(name).size

    def record(self, name: str) -> bytes:
        """Return the content of a record. Check its CRC-32 and, if `expect` set one, its sha256."""
        entry = self._entry(name)
        if entry.size > self.limits.record_bytes:
            what = f"has {entry.size} bytes; the limit for one read is {self.limits.record_bytes}"
            raise self._error(what, name)
        return b"".join(self._checked_chunks(name, entry))

    def json(self, name: str) -> Any:
        """Parse a JSON record into plain Python types. `parse_json` documents what is rejected."""
        limits = self.limits
        if self.size(name) > limits.json_bytes:
            raise self._error(f"has more than {limits.json_bytes} bytes", name)
        try:
            return parse_json(
                self.record(name), most_bytes=limits.json_bytes, most_memory_bytes=limits.json_memory_bytes
            )
        except DocumentError as error:
            raise self._error(str(error), name) from None

    def extent(self, name: str) -> tuple[int, int]:
        """Return the offset of an uncompressed record in the file, and its length."""
        entry = self._entry(name)
        if entry.method != STORED:
            raise self._error("is compressed and cannot be mapped", name)
        return entry.data, entry.size

    def mapped(self, name: str) -> memoryview:
        """Return a record as a view of the memory-mapped file, without reading or checking it.

        Call `verify` first to check the content. The mapping is private, so writing into it does not change
        the file. The view stays valid after `close`.
        """
        offset, length = self.extent(name)
        if self._map is None:
            self._map = self._file.mapped()
        return memoryview(self._map)[offset : offset + length]

    def verify(self, name: str) -> None:
        """Read a record in pieces, without keeping them, and check it as `record` does."""
        for _ in self._checked_chunks(name, self._entry(name)):
            pass

    def streamed(self, name: str) -> Streamed:
        """Return a record to copy. It is read and checked each time that its pieces are iterated."""
        return Streamed(self.size(name), _Checked(self, name))

    def expect(self, digests: Mapping[str, str]) -> None:
        """Set the expected sha256 of records. A record with a different one is rejected when it is read."""
        self._digests = dict(digests)

    def close(self) -> None:
        """Close the file. Views from `mapped` stay valid."""
        self._map = None
        self._file.close()

    def __enter__(self) -> Container:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _entry(self, name: str) -> Entry:
        if name not in self.entries:
            raise self._error("is missing", name)
        return self.entries[name]

    def _error(self, what: str, where: str = "", *, is_trust_missing: bool = False) -> ArchiveError:
        return ArchiveError(self.path, what, where, is_trust_missing=is_trust_missing)

    def _checked_chunks(self, name: str, entry: Entry) -> Iterator[bytes]:
        """Yield the content in pieces. Raise at the end if the content does not match its checksums."""
        expected = self._digests.get(name)
        crc, digest = 0, hashlib.sha256()
        try:
            for chunk in self._chunks(entry):
                crc = zlib.crc32(chunk, crc)
                if expected is not None:
                    digest.update(chunk)
                yield chunk
        except InflateError as error:
            raise self._error(str(error), name) from None
        if crc != entry.crc:
            raise self._error(f"is damaged: its CRC-32 is {crc:08x}, not {entry.crc:08x}", name)
        if expected is not None and digest.hexdigest() != expected:
            raise self._error("is damaged: its sha256 differs from the recorded one", name)

    def _chunks(self, entry: Entry) -> Iterator[bytes]:
        pieces = (
            self._read_at(start, min(MIB, entry.data + entry.packed - start))
            for start in range(entry.data, entry.data + entry.packed, MIB)
        )
        return pieces if entry.method == STORED else inflate(pieces, entry.size)

    def _read_at(self, offset: int, length: int) -> bytes:
        text = self._file.read_at(offset, length) if offset + length <= self._size else b""
        if len(text) != length:
            raise self._error(f"is truncated: bytes {offset} to {offset + length} are missing")
        return text


class _Checked:
    """The pieces of a record, which raise an `ArchiveError` at the end if the record is damaged."""

    def __init__(self, container: Container, name: str) -> None:
        self._container, self._name = container, name

    def __iter__(self) -> Iterator[bytes]:
        return self._container._checked_chunks(self._name, self._container.entries[self._name])


def read_container(
    path: str | os.PathLike[str], *, limits: Limits | None = None, trust: bool = False
) -> Container:
    """Open an archive that torch or fakexport wrote. Other files are rejected.

    The file is not executed, unpickled or written to, and no other file is opened. With the default limits,
    no file takes more than 1 GiB of memory or 20 s. If a file is accepted, Python's zipfile and torch's
    reader find the same records in it.

    Args:
        path: The file.
        limits: Resource limits; `Limits()` by default.
        trust: Whether to accept pickled records, native libraries and records of unknown purpose. They are
            not read.

    Returns:
        The open container. The caller closes it. Records are checked when they are read, or by `verify`.

    Raises:
        ArchiveError: The file is rejected.
        OSError: The file does not exist, cannot be read, or is not a regular file.
    """
    file = open_regular(path)
    try:
        container = Container(file.path, file, limits or Limits())
        _check_layout(container)
        if not trust:
            _check_trust(container)
    except BaseException:
        file.close()
        raise
    return container


def _check_layout(container: Container) -> None:
    if legacy := legacy_layout(container.names):
        raise container._error(legacy.what, legacy.name, is_trust_missing=legacy.is_trust_missing)
    for name, expected in FRAME_RECORDS.items():
        if container.size(name) > 64:
            raise container._error(
                f"has {container.size(name)} bytes, but must contain only {expected.decode()!r}", name
            )
        found = container.record(name)
        if found != expected and not (name == ".data/version" and found in _VERSIONS):
            raise container._error(f"contains {found!r}; only {expected!r} is supported", name)


def _check_trust(container: Container) -> None:
    refused = refused_names(container.names)
    if refused:
        more = f" and {len(refused) - 1} more records" if len(refused) > 1 else ""
        what = f"{refused[0].what}{more}, {UNTRUSTED}"
        raise container._error(what, refused[0].name, is_trust_missing=True)
    configs = [name for name in container.names if is_payload_config(name)]
    if sum(container.size(name) for name in configs) > container.limits.json_bytes:
        raise container._error(f"the payload configurations exceed {container.limits.json_bytes} bytes")
    for name in configs:
        if pickled := _pickled_payload(container, name):
            what = f"`{pickled}` is a pickled payload, {UNTRUSTED}"
            raise container._error(what, name, is_trust_missing=True)


def _pickled_payload(container: Container, name: str) -> str | None:
    """Return the first payload that must be unpickled, or None. C++ objects are parsed without unpickling."""
    payloads = container.json(name)
    config = payloads.get("config") if isinstance(payloads, dict) else None
    if not isinstance(config, dict):
        raise container._error("is not a payload configuration: it has no object `config`", name)
    for payload, meta in config.items():
        if not isinstance(meta, dict):
            raise container._error(f"`{payload}` is not an object", name)
        is_object = (
            name.endswith("_constants_config.json")
            and is_object_record(f"data/constants/{meta.get('path_name')}")
            and meta.get("tensor_meta", 0) is None
        )
        if meta.get("use_pickle") is not False and not is_object:
            return str(payload)
    return None
