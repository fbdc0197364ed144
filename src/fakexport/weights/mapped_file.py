"""Tensors that are windows into a file, and where a tensor is in the files of a checkpoint."""

from __future__ import annotations

import mmap
from bisect import bisect_right
from dataclasses import dataclass
from math import prod
from pathlib import Path

import torch

from fakexport.files import RegularFile
from fakexport.weights.checkpoint import Checkpoint, CheckpointError, Entry


class MappedFile:
    """An open file whose tensors are mapped on first use, and stay mapped as long as one of them lives.

    The mapping is private: a write into a tensor makes a copy of that page. Each tensor has a storage of
    its own, of just its bytes, so that code that saves or compares storages sees separate tensors. (Tensors
    of `safetensors.safe_open` take no memory either, but come without the checks of `read_header`.)

    Args:
        file: Mapped from its descriptor, so that the tensors are of the file whose header was read, and let
            go of then.
    """

    def __init__(self, file: RegularFile) -> None:
        self._source: RegularFile | mmap.mmap = file

    def tensor(self, name: str, entry: Entry) -> torch.Tensor:
        """Return the tensor of an entry.

        Raises:
            CheckpointError: the file has another size than when it was opened, or cannot be mapped.
        """
        if entry.nbytes == 0:
            return torch.empty(entry.shape, dtype=entry.dtype)
        offset = entry.offset or 0
        memory = self._mapped()
        if offset % entry.dtype.itemsize:  # Nothing in the format forbids it; it cannot be a window then.
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
    """Bytes of a file that are the memory of a tensor.

    Args:
        entry: The checkpoint's name for them, or for what they are a part of.
        path: The file.
        offset: Position of the first of them in the file.
    """

    entry: str
    path: Path
    offset: int


class Windows:
    """Looks up tensors among the mapped entries of a checkpoint; reads no data.

    Lookup is by address, so that only tensors of this very checkpoint are found, or views of them:
    converted, merged, copied or moved tensors have other addresses.

    Args:
        checkpoint: Only safetensors files are searched: torch does not report places in a `torch.save` file.
    """

    def __init__(self, checkpoint: Checkpoint) -> None:
        self._checkpoint = checkpoint  # Its files stay mapped, and their addresses valid.
        mapped = sorted(
            (checkpoint.tensor(name).data_ptr(), name)
            for name, entry in checkpoint.entries.items()
            # What is not aligned is no window but a copy; see `MappedFile.tensor`.
            if entry.offset is not None and entry.nbytes and entry.offset % entry.dtype.itemsize == 0
        )
        self._addresses = [address for address, _ in mapped]
        self._names = [name for _, name in mapped]

    def of(self, tensor: torch.Tensor, nbytes: int) -> Window | None:
        """Return the window of `nbytes` bytes from the tensor's first element on; None if there is none."""
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
