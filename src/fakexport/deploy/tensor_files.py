"""Files of tensors: inputs of a program, and its outputs."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

import torch

from fakexport.files import new_file
from fakexport.weights import open_checkpoint


def write_outputs(path: str | os.PathLike[str], outputs: Mapping[str, torch.Tensor]) -> None:
    """Write tensors as a safetensors file, atomically.

    Args:
        path: The file; an existing one is replaced when the new one is complete.
        outputs: Tensors by name, on any device. Tensors that share memory are written separately.
    Raises:
        FileWriteError: it cannot be written; the previous file is kept.
        ModuleNotFoundError: safetensors is not installed.
    """
    from safetensors.torch import save

    own = {name: tensor.detach().to("cpu", copy=True).contiguous() for name, tensor in outputs.items()}
    content = save(own)
    with new_file(path) as file:
        file.write(content)


def read_inputs(path: Path) -> dict[str, torch.Tensor]:
    """Return the tensors of a file by name, in memory of their own: a program may write into its inputs.

    Raises:
        CheckpointError: the file is not a file of tensors, or is refused.
        OSError: it cannot be opened.
    """
    file = open_checkpoint(path)
    return {name: file.tensor(name).clone() for name in file.entries}
