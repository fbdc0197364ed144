"""The outputs of a program as a file."""

from __future__ import annotations

import os
from collections.abc import Mapping

import torch

from fakexport.files import new_file

__all__ = ["write_outputs"]


def write_outputs(path: str | os.PathLike[str], outputs: Mapping[str, torch.Tensor]) -> None:
    """Writes tensors as a safetensors file: as a whole, or not at all.

    Args:
        path: The file; one that is there is replaced when the new one is complete.
        outputs: Tensors by name, on any device. Those that share memory are written each for itself.
    Raises:
        FileWriteError: it cannot be written; what was there before is there still.
        ModuleNotFoundError: safetensors is not installed.
    """
    from safetensors.torch import save

    own = {name: tensor.detach().to("cpu", copy=True).contiguous() for name, tensor in outputs.items()}
    content = save(own)
    with new_file(path) as file:
        file.write(content)
