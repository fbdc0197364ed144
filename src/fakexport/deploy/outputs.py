"""Write the outputs of a program to a file."""

from __future__ import annotations

import os
from collections.abc import Mapping

import torch

from fakexport.files import new_file


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
