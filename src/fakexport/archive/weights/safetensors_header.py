"""Read the header of a safetensors file as untrusted input. Does not import torch.

Sources: the description of the format in the README of huggingface/safetensors, and its reader in Rust. This
reader and the Rust reader reject the same files.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any, Protocol

from fakexport.archive.weights.checkpoint_files import CheckpointError
from fakexport.files.documents import DocumentError, mapping, parse_json

_NAMES_BY_SIZE = {
    1: {"BOOL": "bool", "U8": "uint8", "I8": "int8", "F8_E5M2": "float8_e5m2", "F8_E4M3": "float8_e4m3fn",
        "F8_E8M0": "float8_e8m0fnu", "F8_E5M2FNUZ": "float8_e5m2fnuz", "F8_E4M3FNUZ": "float8_e4m3fnuz"},
    2: {"U16": "uint16", "I16": "int16", "F16": "float16", "BF16": "bfloat16"},
    4: {"U32": "uint32", "I32": "int32", "F32": "float32"},
    8: {"U64": "uint64", "I64": "int64", "F64": "float64", "C64": "complex64"},
}  # fmt: skip
DTYPE_NAMES = {kind: (name, size) for size, names in _NAMES_BY_SIZE.items() for kind, name in names.items()}
"""Dtype name in the safetensors format -> name in torch, and bytes per element."""

MAX_HEADER_BYTES = 100_000_000
"""The same limit as in the safetensors library."""

_MAX_NAME = 4096
_MAX_DIMENSIONS = 64
_LENGTH_BYTES = 8
_FIELDS = {"dtype", "shape", "data_offsets"}


class Readable(Protocol):
    """An open file on this machine or on the hub. Only its header is read."""

    @property
    def path(self) -> str: ...

    @property
    def size(self) -> int: ...

    def read_at(self, offset: int, length: int) -> bytes: ...


@dataclass(frozen=True)
class StoredEntry:
    """One tensor of a file.

    Args:
        shape, dtype: Its sizes, and the name of its dtype in torch.
        offset, nbytes: Position of its first byte in the file, and its size, in bytes.
    """

    shape: tuple[int, ...]
    dtype: str
    offset: int
    nbytes: int


def read_entries(file: Readable) -> tuple[dict[str, StoredEntry], dict[str, str]]:
    """Return the tensors of an open file in the order of their data, and its metadata by name."""
    path, size = Path(file.path), file.size
    length = int.from_bytes(file.read_at(0, _LENGTH_BYTES), "little")
    if size < _LENGTH_BYTES:
        raise _refused(path, f"it has {size} bytes, too few for a header")
    if length > MAX_HEADER_BYTES:
        raise _refused(path, f"its header claims {length:,} bytes; the limit is {MAX_HEADER_BYTES:,}")
    start = _LENGTH_BYTES + length
    if start > size:
        raise _refused(path, f"its header claims {length:,} bytes, but the file has {size:,}")
    text = file.read_at(_LENGTH_BYTES, length)
    if not text.startswith(b"{"):
        raise _refused(path, "its header does not start with {")
    try:
        fields = mapping(parse_json(text))
    except DocumentError as error:
        raise _refused(path, f"its header is invalid: {error}") from error
    metadata = _metadata(path, fields.pop("__metadata__", {}))
    found = {name: _entry(path, name, field, start) for name, field in fields.items()}
    ordered = dict(sorted(found.items(), key=lambda item: (item[1].offset, item[1].nbytes)))
    _check_layout(path, ordered, start, size)
    return ordered, metadata


def _metadata(path: Path, field: Any) -> dict[str, str]:
    if not isinstance(field, dict) or not all(isinstance(value, str) for value in field.values()):
        raise _refused(path, "its __metadata__ does not map names to text")
    return field


def _entry(path: Path, name: str, field: Any, start: int) -> StoredEntry:
    def refused(reason: str) -> CheckpointError:
        return _refused(path, f"{_shown(name)}: {reason}")

    if not 0 < len(name) <= _MAX_NAME or not name.isprintable():
        raise refused("a name must be printable text of at most 4,096 characters")
    if not isinstance(field, dict) or field.keys() != _FIELDS:
        raise refused("an entry must have dtype, shape and data_offsets, and nothing else")
    kind, shape, offsets = field["dtype"], field["shape"], field["data_offsets"]
    if not isinstance(kind, str) or kind not in DTYPE_NAMES:
        raise refused(f"the dtype {str(kind)[:40]!r} is not supported")
    if not _is_sizes(shape) or len(shape) > _MAX_DIMENSIONS:
        raise refused("the shape is not a list of sizes")
    if not _is_sizes(offsets) or len(offsets) != 2 or offsets[0] > offsets[1]:
        raise refused("data_offsets is not a pair of begin and end")
    (dtype, size), nbytes = DTYPE_NAMES[kind], offsets[1] - offsets[0]
    if prod(shape) * size != nbytes:
        raise refused(f"{kind}{shape} does not fit the {nbytes:,} bytes between its offsets")
    return StoredEntry(tuple(shape), dtype, start + offsets[0], nbytes)


def _is_sizes(value: Any) -> bool:
    """Return whether the value is a list of integers from 0 to 2**63 - 1."""
    return isinstance(value, list) and all(type(size) is int and 0 <= size < 2**63 for size in value)


def _check_layout(path: Path, entries: dict[str, StoredEntry], start: int, size: int) -> None:
    """Check that the data has no gaps or overlaps, and ends at the end of the file."""
    for name, begin, end, expected in _places(entries, start):
        if begin != expected:
            fault = "overlaps the previous tensor" if begin < expected else "leaves a hole before it"
            raise _refused(path, f"{_shown(name)}: its data {fault}")
        if end > size:
            raise _refused(path, f"{_shown(name)}: its data ends at {end:,}, but the file ends at {size:,}")
    end = start + sum(entry.nbytes for entry in entries.values())
    if end != size:
        raise _refused(path, f"its tensors end at {end:,}, but the file ends at {size:,}")


def _places(entries: dict[str, StoredEntry], start: int) -> Iterator[tuple[str, int, int, int]]:
    expected = start
    for name, entry in entries.items():
        end = entry.offset + entry.nbytes
        yield name, entry.offset, end, expected
        expected = end


def _shown(name: str) -> str:
    return repr(name if len(name) <= 80 else f"{name[:80]}...")


def _refused(path: Path, reason: str) -> CheckpointError:
    return CheckpointError(f"{path.name} is not a valid safetensors file: {reason}")
