"""Read the headers of safetensors files, and memory-map their tensors."""

from __future__ import annotations

import mmap
from bisect import bisect_right
from dataclasses import dataclass
from math import prod
from pathlib import Path

import torch

from fakexport.archive.weights.checkpoint import Checkpoint, Entry
from fakexport.archive.weights.checkpoint_files import CheckpointError
from fakexport.archive.weights.safetensors_header import Readable, read_entries
from fakexport.emulation.fake import DTYPES as DTYPES
from fakexport.files import RegularFile, open_regular


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
    stored, metadata = read_entries(file)
    name = Path(file.path).name
    entries = {
        key: Entry(entry.shape, getattr(torch, entry.dtype), name, entry.offset, entry.nbytes)
        for key, entry in stored.items()
    }
    return Header(entries, metadata)


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
