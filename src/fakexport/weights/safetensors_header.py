"""The header of a safetensors file, read as untrusted input.

Source: the format's description in the README of huggingface/safetensors, and its reader in Rust, which
refuses the same files.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any, Protocol

from fakexport.documents import DocumentError, mapping, parse_json
from fakexport.fake import DTYPES as DTYPES
from fakexport.files import open_regular
from fakexport.weights.checkpoint import CheckpointError, Entry

MAX_HEADER_BYTES = 100_000_000
"""Upstream's own limit."""

_MAX_NAME = 4096
_MAX_DIMENSIONS = 64
_LENGTH_BYTES = 8
_FIELDS = {"dtype", "shape", "data_offsets"}


class Readable(Protocol):
    """A file that is open already, here or on the hub; only its header is read."""

    @property
    def path(self) -> str: ...

    @property
    def size(self) -> int: ...

    def read_at(self, offset: int, length: int) -> bytes: ...


@dataclass(frozen=True)
class Header:
    """What a safetensors file holds: its tensors in the order of their data, and text by name."""

    entries: dict[str, Entry]
    metadata: dict[str, str]


def read_header(path: Path) -> Header:
    """Return the header of a file; the tensors are not read, and nothing is allocated for them.

    Raises:
        CheckpointError: the file breaks a rule of the format; one line.
        OSError: the file cannot be opened.
    """
    with open_regular(path) as file:
        return read_header_of(file)


def read_header_of(file: Readable) -> Header:
    """Return the same of a file that is open already, and stays open."""
    path, size = Path(file.path), file.size
    length = int.from_bytes(file.read_at(0, _LENGTH_BYTES), "little")
    if size < _LENGTH_BYTES:
        raise _refused(path, f"it has {size} bytes, too few for a header")
    if length > MAX_HEADER_BYTES:
        raise _refused(path, f"its header claims {length:,} bytes; the limit is {MAX_HEADER_BYTES:,}")
    start = _LENGTH_BYTES + length
    if start > size:
        raise _refused(path, f"its header claims {length:,} bytes, the file has {size:,}")
    text = file.read_at(_LENGTH_BYTES, length)
    if not text.startswith(b"{"):
        raise _refused(path, "its header does not start with {")
    try:
        fields = mapping(parse_json(text))
    except DocumentError as error:
        raise _refused(path, f"its header is refused: {error}") from error
    metadata = _metadata(path, fields.pop("__metadata__", {}))
    found = {name: _entry(path, name, field, start) for name, field in fields.items()}
    ordered = dict(sorted(found.items(), key=lambda item: (item[1].offset or 0, item[1].nbytes)))
    _check_layout(path, ordered, start, size)
    return Header(ordered, metadata)


def _metadata(path: Path, field: Any) -> dict[str, str]:
    if not isinstance(field, dict) or not all(isinstance(value, str) for value in field.values()):
        raise _refused(path, "its __metadata__ does not map names to text")
    return field


def _entry(path: Path, name: str, field: Any, start: int) -> Entry:
    def refused(reason: str) -> CheckpointError:
        return _refused(path, f"{_shown(name)}: {reason}")

    if not 0 < len(name) <= _MAX_NAME or not name.isprintable():
        raise refused("a name must be printable text of at most 4,096 characters")
    if not isinstance(field, dict) or field.keys() != _FIELDS:
        raise refused("an entry must have dtype, shape and data_offsets, and nothing else")
    kind, shape, offsets = field["dtype"], field["shape"], field["data_offsets"]
    if not isinstance(kind, str) or kind not in DTYPES:
        raise refused(f"the dtype {str(kind)[:40]!r} is not supported")
    if not _is_sizes(shape) or len(shape) > _MAX_DIMENSIONS:
        raise refused("the shape is not a list of sizes")
    if not _is_sizes(offsets) or len(offsets) != 2 or offsets[0] > offsets[1]:
        raise refused("data_offsets is not a pair of begin and end")
    dtype, nbytes = DTYPES[kind], offsets[1] - offsets[0]
    if prod(shape) * dtype.itemsize != nbytes:
        raise refused(f"{kind}{shape} does not fit the {nbytes:,} bytes between its offsets")
    return Entry(tuple(shape), dtype, path.name, start + offsets[0], nbytes)


def _is_sizes(value: Any) -> bool:
    """Return whether the value is a list of integers from 0 to 2**63 - 1."""
    return isinstance(value, list) and all(type(size) is int and 0 <= size < 2**63 for size in value)


def _check_layout(path: Path, entries: dict[str, Entry], start: int, size: int) -> None:
    """Check that the data follows the header without a hole or an overlap, and ends where the file ends."""
    for name, begin, end, expected in _places(entries, start):
        if begin != expected:
            fault = "overlaps the previous tensor" if begin < expected else "leaves a hole before it"
            raise _refused(path, f"{_shown(name)}: its data {fault}")
        if end > size:
            raise _refused(path, f"{_shown(name)}: its data ends at {end:,}, the file at {size:,}")
    end = start + sum(entry.nbytes for entry in entries.values())
    if end != size:
        raise _refused(path, f"its tensors end at {end:,}, the file at {size:,}")


def _places(entries: dict[str, Entry], start: int) -> Iterator[tuple[str, int, int, int]]:
    expected = start
    for name, entry in entries.items():
        begin = entry.offset or 0
        yield name, begin, begin + entry.nbytes, expected
        expected = begin + entry.nbytes


def _shown(name: str) -> str:
    return repr(name if len(name) <= 80 else f"{name[:80]}...")


def _refused(path: Path, reason: str) -> CheckpointError:
    return CheckpointError(f"{path.name} is not a valid safetensors file: {reason}")
