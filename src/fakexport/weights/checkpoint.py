"""Checkpoints: named tensors that are described at once and read when they are needed."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from fakexport.error import FakexportError


class CheckpointError(FakexportError, ValueError):
    """A checkpoint that cannot be read, or that is refused; one line that names the file and the reason."""


@dataclass(frozen=True)
class Entry:
    """One tensor of a checkpoint.

    Args:
        shape: Its sizes.
        dtype: Its dtype.
        file: Name of the file that holds it, without folders; None for a tensor in memory.
        offset: Position of its first byte in that file; None where the file's library does not say.
        nbytes: Bytes of its elements.
    """

    shape: tuple[int, ...]
    dtype: torch.dtype
    file: str | None = None
    offset: int | None = None
    nbytes: int = 0


@dataclass(frozen=True)
class Checkpoint:
    """The tensors of a checkpoint by name.

    Args:
        location: The path as given, or what the tensors came in ("a dict").
        entries: Every tensor, in the order of the files.
        metadata: What a safetensors file says about itself: text by name.
        shared: Groups of names that are one memory. safetensors files have none.
        folder: Where the files are; None for tensors in memory.
        adapters: The adapters that were opened with it.
        is_merged: Whether an adapter is merged into it already.
        base: With adapters, the names of the entries that are not of one.
        read: Returns the tensor of a name.
    """

    location: str
    entries: Mapping[str, Entry]
    read: Callable[[str], torch.Tensor] = field(repr=False)
    metadata: Mapping[str, str] = field(default_factory=dict)
    shared: tuple[tuple[str, ...], ...] = ()
    folder: Path | None = None
    adapters: tuple[Any, ...] = ()
    is_merged: bool = False
    base: frozenset[str] = frozenset()

    @property
    def nbytes(self) -> int:
        """Bytes of all tensors; one that several names share is counted once."""
        again = {name for names in self.shared for name in names[1:]}
        return sum(entry.nbytes for name, entry in self.entries.items() if name not in again)

    def tensor(self, name: str) -> torch.Tensor:
        """Return the tensor itself: mapped from its file, so that its data is read when it is first used.

        Writing into it changes neither the file nor another tensor. For a checkpoint in memory, it is
        the given tensor.

        Raises:
            KeyError: no entry of this name.
            CheckpointError: the file cannot be mapped.
        """
        if name not in self.entries:
            raise KeyError(name)
        return self.read(name)
