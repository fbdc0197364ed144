"""Checkpoints written by `torch.save`, and tensors that are already in memory."""

from __future__ import annotations

import pickle
import sys
from collections.abc import Mapping
from pathlib import Path

import torch

from fakexport._torch.wrapper_subclasses import flat_tensors
from fakexport.error import type_and_line
from fakexport.files import open_regular
from fakexport.weights.checkpoint import CheckpointError, Entry

# Under which key training scripts put the state dict, next to optimizer and epoch.
_NESTED = ("state_dict", "model_state_dict", "model", "module")


def load_torch_file(path: Path) -> dict[str, torch.Tensor]:
    """Return the tensors of a file that `torch.save` wrote: mapped, on the CPU, without running its pickle.

    Raises:
        CheckpointError: the file is refused, or does not map names to tensors; one line.
    """
    try:
        with open_regular(path) as file:
            loaded = torch.load(file.same_file, weights_only=True, mmap=True, map_location="cpu")
    except OSError:
        raise
    except pickle.UnpicklingError as error:
        raise CheckpointError(f"{path.name} is refused: {_reason(str(error))}") from error
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
    """Return the entries of tensors that are in memory, or mapped by torch.

    Raises:
        CheckpointError: a sparse or quantized tensor.
    """
    found = {}
    for name, tensor in tensors.items():
        if tensor.layout is not torch.strided or tensor.is_quantized:
            raise CheckpointError(f"{name} is not a plain tensor: its layout is {tensor.layout}")
        nbytes = tensor.numel() * tensor.itemsize
        found[name] = Entry(tuple(tensor.shape), tensor.dtype, file, None, nbytes)
    return found


def _reason(refusal: str) -> str:
    """Return why torch refuses to load what a file names; torchao declares its classes safe on import."""
    if "GLOBAL torchao." in refusal and "torchao" not in sys.modules:
        return "it contains torchao tensors: import torchao first, or pass `--library torchao`"
    return "it contains more than tensors, and loading that could run code from the file"


def _tensors(loaded: object) -> dict[str, torch.Tensor]:
    """Return the tensors by name; other values, such as an epoch or `_extra_state`, are left out."""
    if not isinstance(loaded, Mapping):
        return {}
    found = {n: t for n, t in loaded.items() if isinstance(n, str) and isinstance(t, torch.Tensor)}
    return {name: tensor.detach() for name, tensor in flat_tensors(found).items()}
