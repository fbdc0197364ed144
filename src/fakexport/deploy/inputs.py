"""The inputs of a program from a file."""

from __future__ import annotations

from pathlib import Path

import torch

from fakexport.weights import open_checkpoint


def read_inputs(path: Path) -> dict[str, torch.Tensor]:
    """Return the tensors of a file by name, in memory of their own: a program may write into its inputs.

    Raises:
        CheckpointError: the file is not a file of tensors, or is refused.
        OSError: it cannot be opened.
    """
    file = open_checkpoint(path)
    return {name: file.tensor(name).clone() for name in file.entries}
