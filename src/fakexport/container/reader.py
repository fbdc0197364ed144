"""The zip file of a `.pt2` archive as a set of named records, opened without trusting it."""

from __future__ import annotations

import hashlib
import mmap
import os
import zlib
from collections.abc import Iterable, Iterator, Mapping
from types import TracebackType
from typing import Any

from fakexport.container.contents import (
    FRAME_RECORDS,
    UNTRUSTED,
    is_object_record,
    is_payload_config,
    legacy_layout,
    refused_names,
)
from fakexport.container.error import ArchiveError
from fakexport.container.framing import ALIGNMENT, STORED, Entry
from fakexport.container.limits import MIB, Limits
from fakexport.container.plain_zip import read_any_entries
from fakexport.documents import DocumentError, parse_json
from fakexport.error import FakexportError
from fakexport.files import RegularFile, open_regular


class InflateError(FakexportError, ValueError):
    """The packed bytes are not one deflate stream of the declared size."""


def inflate(pieces: Iterable[bytes], size: int) -> Iterator[bytes]:
    """Yield the content of a raw deflate stream, in pieces of at most 1 MiB.

    Args:
        pieces: The packed bytes, not empty.
        size: Bytes of the content. No more are ever produced.
    Raises:
        InflateError: Not deflate, another size, bytes after the stream, or unused bits that are not 0.
    """
    stream = zlib.decompressobj(-zlib.MAX_WBITS)
    left = size
    for content in _steps(stream, pieces):
        left -= len(content)
        if left < 0:
            raise InflateError(f"inflates to more than the {size} bytes that it declares")
        yield content
    if left:
        raise InflateError(f"inflates to {size - left} bytes and declares {size}")


def _steps(stream: zlib._Decompress, pieces: Iterable[bytes]) -> Iterator[bytes]:
    held = b""
    for piece in pieces:
        # The last byte waits until it is known to be the last: it is read on its own.
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
    """Yield the output of these bytes, in pieces of at most 1 MiB."""
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
    """Return whether the stream would end in the same way without the highest bit of its last byte.

    The bits after the end of the stream are 0 in what any compressor writes; no checksum covers them.
    """
    value = last[0]
    if not value:
        return False
    cleared = bytes([value & ~(1 << (value.bit_length() - 1))])
    try:
        return list(_drain(before, cleared)) == ending and before.eof
    except InflateError:
        return False


__all__ = ["Container", "Limits", "read_container"]

_VERSIONS = {b"6\n", b"5\n", b"4\n", b"3\n"}


class Container:
    """An open archive whose layout is checked; `read_container` makes it, and `with` closes it.

    Records are read when asked for. Names are those inside the archive's folder: `models/model.json`.

    Args:
        path: The file, as the caller named it.
        folder: The one folder that holds every record.
        entries: The records by name, in the order of the file.
    """

    def __init__(self, path: str, file: RegularFile, limits: Limits) -> None:
        self.path = path
        self.limits = limits
        self._file = file
        self._size = file.size
        self._map: mmap.mmap | None = None
        self._digests: Mapping[str, str] = {}
        entries = read_any_entries(path, self._read_at, self._size, limits)
        self.folder = entries[0].name.partition("/")[0]
        self.entries: Mapping[str, Entry] = {entry.name.partition("/")[2]: entry for entry in entries}

    @property
    def file_bytes(self) -> int:
        """Size of the file."""
        return self._size

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the records, in the order of the file."""
        return tuple(self.entries)

    def size(self, name: str) -> int:
        """Return the size of a record's content in bytes."""
        return self._entry(name).size

    def record(self, name: str) -> bytes:
        """Return the content of a record, checked against its CRC and against `expect`.

        Raises:
            ArchiveError: No such record, larger than `limits.record_bytes`, or damaged.
        """
        entry = self._entry(name)
        if entry.size > self.limits.record_bytes:
            what = f"has {entry.size} bytes; at most {self.limits.record_bytes} are read at once"
            raise self._error(what, name)
        content = b"".join(self._checked_chunks(name, entry))
        return content

    def json(self, name: str) -> Any:
        """Return the value of a JSON record, of plain Python types; see `parse_json` for what is refused."""
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
        """Return the offset and length of a stored record in the file."""
        entry = self._entry(name)
        if entry.method != STORED:
            raise self._error("is compressed and cannot be mapped", name)
        return entry.data, entry.size

    def mapped(self, name: str) -> memoryview:
        """Return a record as memory of the file: no byte is read before it is used, none is checked.

        Call `verify` first to have it checked. The memory is private: writing to it changes no file. It
        stays valid after `close`, and lasts as long as the view does. Records that other writers compressed,
        or did not align, are read and checked here.
        """
        entry = self._entry(name)
        if entry.method != STORED or entry.data % ALIGNMENT:
            content = bytearray()
            for chunk in self._checked_chunks(name, entry):
                content += chunk
            return memoryview(content)
        offset, length = self.extent(name)
        if self._map is None:
            self._map = self._file.mapped()
        return memoryview(self._map)[offset : offset + length]

    def verify(self, name: str) -> str:
        """Read a whole record in small steps, check it, and return the sha256 of its content in hex.

        Raises:
            ArchiveError: No such record, or damaged.
        """
        digest = hashlib.sha256()
        for chunk in self._checked_chunks(name, self._entry(name)):
            digest.update(chunk)
        return digest.hexdigest()

    def expect(self, digests: Mapping[str, str]) -> None:
        """Refuse records from now on whose sha256 differs from the given ones."""
        self._digests = dict(digests)

    def close(self) -> None:
        """Close the file. Views returned by `mapped` stay valid."""
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
        """Yield the content in steps; raise at the end if it does not match the file's checksum."""
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
            raise self._error("is damaged: its sha256 differs from the manifest's", name)

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


def read_container(
    path: str | os.PathLike[str], *, limits: Limits | None = None, trust: bool = False
) -> Container:
    """Open an archive written by torch or fakexport, and refuse everything else.

    Nothing is executed, unpickled, written, or opened besides the file. Memory and time stay below 1 GiB and
    20 s whatever the file contains, with the default limits. If it is accepted, Python's zipfile and torch's
    reader see the same records.

    Args:
        path: The file.
        limits: Resource limits; `Limits()` by default.
        trust: Accept pickled records, native libraries and records of unknown purpose. They are not read.
    Returns:
        The open container; the caller closes it. Contents are checked when they are read, or by `verify`.
    Raises:
        ArchiveError: The file is refused.
        OSError: It is not there, may not be read, or is not a regular file.
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
            raise container._error(f"has {container.size(name)} bytes, but should be one word", name)
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
    """Return the first payload that torch would unpickle and we cannot read; C++ objects are read."""
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
