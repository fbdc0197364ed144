"""Checkpoints: named tensors with known shapes and dtypes. Also reads files written by `torch.save`."""

from __future__ import annotations

import pickle
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from fakexport._torch.emulation.wrapper_subclasses import flat_tensors
from fakexport.archive.weights.checkpoint_files import CheckpointError
from fakexport.error import type_and_line
from fakexport.files import open_regular


@dataclass(frozen=True)
class Entry:
    """One tensor of a checkpoint.

    Args:
        shape: Sizes of its dimensions.
        dtype: Its dtype.
        file: Name of the file that contains it, without folders; None for a tensor in memory.
        offset: Position of its first byte in the file; None if unknown, as in `torch.save` files.
        nbytes: Size of its elements in bytes.
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
        location: The path as the caller passed it, or a description such as "a mapping".
        entries: Every tensor, in the order of the files.
        metadata: The metadata of a safetensors file, as strings by name.
        shared: Groups of names that share memory. safetensors files have none.
        folder: Folder of the files; None for tensors in memory.
        adapters: The adapters that were opened with the checkpoint.
        is_merged: Whether an adapter is already merged into the weights.
        base: Names of the entries that do not belong to an adapter; empty if there are no adapters.
        read: Function that returns the tensor with a name.
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
        """Size of all tensors in bytes. A tensor with several names counts once."""
        again = {name for names in self.shared for name in names[1:]}
        return sum(entry.nbytes for name, entry in self.entries.items() if name not in again)

    def tensor(self, name: str) -> torch.Tensor:
        """Return a tensor. It is memory-mapped from its file, so its data is read on first use.

        Writing into it changes neither the file nor other tensors. A checkpoint in memory returns its own
        tensor.
        """
        if name not in self.entries:
            raise KeyError(name)
        return self.read(name)


# Keys under which training scripts store the state dict, next to the optimizer and the epoch.
_NESTED = ("state_dict", "model_state_dict", "model", "module")


def load_torch_file(path: Path) -> dict[str, torch.Tensor]:
    """Return the tensors of a file written by `torch.save`, without executing code from its pickle.

    The tensors are on the CPU and memory-mapped from the file.
    """
    try:
        with open_regular(path) as file:
            loaded = torch.load(file.same_file, weights_only=True, mmap=True, map_location="cpu")
    except OSError:
        raise
    except pickle.UnpicklingError as error:
        raise CheckpointError(f"{path.name} is rejected: {_reason(str(error))}") from error
    except Exception as error:
        raise CheckpointError(f"{path.name} cannot be loaded: {type_and_line(error)}") from error
    tensors = _tensors(loaded)
    if not tensors and isinstance(loaded, Mapping):
        nested = [found for key in _NESTED if (found := _tensors(loaded.get(key)))]
        tensors = nested[0] if len(nested) == 1 else {}
    if not tensors:
        raise CheckpointError(f"{path.name} does not map names to tensors")
    return tensors


def entries_of(tensors: Mapping[str, torch.Tensor], file: str | None) -> dict[str, Entry]:
    """Return checkpoint entries for tensors that are in memory, or that torch has memory-mapped."""
    found = {}
    for name, tensor in tensors.items():
        if tensor.layout is not torch.strided or tensor.is_quantized:
            raise CheckpointError(f"{name} is not a plain tensor: its layout is {tensor.layout}")
        nbytes = tensor.numel() * tensor.itemsize
        found[name] = Entry(tuple(tensor.shape), tensor.dtype, file, None, nbytes)
    return found


def _reason(refusal: str) -> str:
    """Return why torch rejects a file. If it contains torchao tensors, importing torchao is the fix."""
    if "GLOBAL torchao." in refusal and "torchao" not in sys.modules:
        return "it contains torchao tensors: import torchao first, or pass `--library torchao`"
    return "it contains more than tensors, and loading that could run code from the file"


def _tensors(loaded: object) -> dict[str, torch.Tensor]:
    """Return the tensors of a mapping. Other values, such as an epoch or `_extra_state`, are omitted."""
    if not isinstance(loaded, Mapping):
        return {}
    found = {n: t for n, t in loaded.items() if isinstance(n, str) and isinstance(t, torch.Tensor)}
    return {name: tensor.detach() for name, tensor in flat_tensors(found).items()}
