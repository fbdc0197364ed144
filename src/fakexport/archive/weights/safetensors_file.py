"""Read the header of a safetensors file as untrusted input, and memory-map its tensors.

Sources: the description of the format in the README of huggingface/safetensors, and its reader in Rust. This
reader and the Rust reader reject the same files.
"""

from __future__ import annotations

import mmap
from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any, Protocol

import torch

from fakexport.archive.weights.checkpoint import Checkpoint, CheckpointError, Entry
from fakexport.emulation.fake import DTYPES as DTYPES
from fakexport.files import RegularFile, open_regular
from fakexport.files.documents import DocumentError, mapping, parse_json

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
class Header:
    """The header of a safetensors file: its tensors in the order of their data, and its metadata by name."""

    entries: dict[str, Entry]
    metadata: dict[str, str]


def read_header(path: Path) -> Header:
    """Return the header of a safetensors file. Tensors are neither read nor allocated."""
    with open_regular(path) as file:
        return read_header_of(file)


def read_header_of(file: Readable) -> Header:
    """Return the header of an open file. The file stays open."""
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


class MappedFile:
    """An open file whose tensors are memory-mapped on first use. The mapping exists as long as a tensor does.

    The mapping is private, so writing into a tensor does not change the file. Each tensor has its own storage
    with exactly its bytes, for code that saves or compares storages. (`safetensors.safe_open` also maps
    tensors, but skips the checks of `read_header`.)

    Args:
        file: The open file whose header was read. It is closed once it is mapped.
    """

    def __init__(self, file: RegularFile) -> None:
        self._source: RegularFile | mmap.mmap = file

    def tensor(self, name: str, entry: Entry) -> torch.Tensor:
        if entry.nbytes == 0:
            return torch.empty(entry.shape, dtype=entry.dtype)
        offset = entry.offset or 0
        memory = self._mapped()
        # The format allows unaligned data, but torch cannot create a tensor on it, so copy the bytes.
        if offset % entry.dtype.itemsize:
            data = torch.frombuffer(bytearray(memory[offset : offset + entry.nbytes]), dtype=entry.dtype)
        else:
            count = prod(entry.shape)
            data = torch.frombuffer(memory, dtype=entry.dtype, count=count, offset=offset)
        return data.reshape(entry.shape)

    def _mapped(self) -> mmap.mmap:
        source = self._source
        if isinstance(source, RegularFile):
            try:
                source = self._source = source.mapped()
            except OSError as error:
                raise CheckpointError(f"{Path(error.filename).name}: {error.strerror or error}") from error
        return source


@dataclass(frozen=True)
class Window:
    """A range of a file that a tensor is memory-mapped from, and the checkpoint entry that contains it."""

    entry: str
    path: Path
    offset: int


class Windows:
    """Find where tensors are stored in the safetensors files of a checkpoint, without reading data.

    The lookup is by memory address, so it only finds tensors that were read from this checkpoint object, and
    views of them. Converted, merged, copied or moved tensors have different addresses.
    """

    def __init__(self, checkpoint: Checkpoint) -> None:
        self._checkpoint = checkpoint  # Keeps the files mapped, so that the addresses stay valid.
        mapped = sorted(
            (checkpoint.tensor(name).data_ptr(), name)
            for name, entry in checkpoint.entries.items()
            # Unaligned entries are copies; see `MappedFile.tensor`.
            if entry.offset is not None and entry.nbytes and entry.offset % entry.dtype.itemsize == 0
        )
        self._addresses = [address for address, _ in mapped]
        self._names = [name for _, name in mapped]

    def of(self, tensor: torch.Tensor, nbytes: int) -> Window | None:
        """Return where the `nbytes` bytes from the tensor's first element are stored, or None if unknown."""
        if tensor.device.type != "cpu" or not nbytes:
            return None
        index = bisect_right(self._addresses, tensor.data_ptr()) - 1
        if index < 0:
            return None
        name, begin = self._names[index], tensor.data_ptr() - self._addresses[index]
        entry, folder = self._checkpoint.entries[name], self._checkpoint.folder
        if folder is None or entry.file is None or entry.offset is None:
            return None
        if entry.dtype != tensor.dtype or begin + nbytes > entry.nbytes:
            return None
        return Window(name, folder / entry.file, entry.offset + begin)
