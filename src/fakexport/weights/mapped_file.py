"""Tensors that are windows into a file."""

from __future__ import annotations

import mmap
from math import prod
from pathlib import Path

import torch

from fakexport.files import RegularFile
from fakexport.weights.checkpoint import CheckpointError, Entry


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
