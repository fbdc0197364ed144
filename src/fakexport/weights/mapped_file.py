"""Tensors that are windows into a file."""

from __future__ import annotations

import mmap
import sys
from dataclasses import dataclass, field
from math import prod
from pathlib import Path

import torch

from fakexport.weights.checkpoint import CheckpointError, Entry

__all__ = ["MappedFile"]

# Python's `mmap` names it from 3.12 on. Without it, Linux refuses a private mapping larger than its memory.
_LINUX_NORESERVE = 0x4000


@dataclass
class MappedFile:
    """A file whose tensors are mapped on first use, and stay mapped as long as one of them lives.

    The mapping is private: a write into a tensor makes a copy of that page. Each tensor has a storage of
    its own, of just its bytes, so that whoever saves or compares storages sees separate tensors. (The tensors
    that `safetensors.safe_open` gives take no memory either; they come without the checks of `read_header`.)
    """

    path: Path
    size: int
    _memory: mmap.mmap | None = field(default=None, repr=False)

    def tensor(self, name: str, entry: Entry) -> torch.Tensor:
        """The tensor of an entry.

        Raises:
            CheckpointError: the file is gone, or is not what it was when its header was read.
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
        if self._memory is None:
            try:
                with self.path.open("rb") as file:
                    size = file.seek(0, 2)
                    if size != self.size:
                        was = f"and had {self.size:,} when it was opened"
                        raise CheckpointError(f"{self.path.name} has {size:,} bytes now, {was}")
                    self._memory = _map(file.fileno(), size)
            except OSError as error:
                raise CheckpointError(f"{self.path.name}: {error.strerror or error}") from error
        return self._memory


def _map(descriptor: int, size: int) -> mmap.mmap:
    if sys.platform == "linux":
        flags = mmap.MAP_PRIVATE | _LINUX_NORESERVE
        return mmap.mmap(descriptor, size, flags=flags, prot=mmap.PROT_READ | mmap.PROT_WRITE)
    return mmap.mmap(descriptor, size, access=mmap.ACCESS_COPY)
