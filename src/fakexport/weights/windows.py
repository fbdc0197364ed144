"""Where a tensor is in the files of a checkpoint."""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass
from pathlib import Path

import torch

from fakexport.weights.checkpoint import Checkpoint


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
