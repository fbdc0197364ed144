"""The file of weights beside a package: read by name, and held against what the package says it needs."""

from __future__ import annotations

from pathlib import Path

import torch

from fakexport._torch.real_execution import real_execution
from fakexport.program.tensor_spec import plain_name
from fakexport.weights import Checkpoint, WeightFinding, open_checkpoint, warn_of
from fakexport.weights.finite import are_equal

from ..artifact import DeployError
from ..weights_file import file_beside
from .metadata import PackageMetadata, TensorDescription

__all__ = ["weights_beside"]


def weights_beside(path: Path, metadata: PackageMetadata) -> dict[str, torch.Tensor]:
    """The weights that the code of a package wants, by the names that it has for them; mapped, contiguous.

    Args:
        path: The package.
        metadata: What it says of itself.
    Raises:
        DeployError: there is no such file, a weight is missing or another, or one that has several names has
            several values.
        CheckpointError: the file is refused.
    Warns:
        WeightsWarning: the file has entries that the program does not know (FE704), as `bind` warns of them.
    """
    beside = file_beside(path)
    if not beside.exists():
        raise DeployError(f"{path} has no weights: give a checkpoint, or put {beside.name} beside it")
    opened = open_checkpoint(beside)
    weights = {wanted.name: _weight(beside, wanted, opened) for wanted in metadata.tensors}
    known = _known_names(metadata)
    if others := tuple(name for name in opened.entries if name not in known):
        warn_of(str(beside), [WeightFinding("FE704", others)])
    return weights


def _known_names(metadata: PackageMetadata) -> set[str]:
    wanted = (name for tensor in metadata.tensors for name in (tensor.name, *tensor.aliases))
    return {*wanted, *metadata.unread}


def _weight(path: Path, wanted: TensorDescription, opened: Checkpoint) -> torch.Tensor:
    names = [name for name in (wanted.name, *wanted.aliases) if name in opened.entries]
    if not names:
        raise DeployError(f"{path}: the weight {wanted.name} is missing")
    for name in names:
        found = opened.entries[name]
        if (plain_name(found.dtype), found.shape) != (wanted.dtype, wanted.shape):
            raise DeployError(
                f"{path}: the weight {name} is {plain_name(found.dtype)}{list(found.shape)}, and the "
                f"program takes {wanted.dtype}{list(wanted.shape)}"
            )
    with real_execution():
        first, *others = (opened.tensor(name) for name in names)
        for name, other in zip(names[1:], others, strict=True):
            if not are_equal(first, other):
                raise DeployError(f"{path}: {names[0]} and {name} differ, and are one weight of the program")
        return first.detach().contiguous()
