"""The file of weights next to a package: read by name, and checked against the package's metadata."""

from __future__ import annotations

from pathlib import Path

import torch

from fakexport._torch.real_execution import real_execution
from fakexport.program import plain_name
from fakexport.weights import Checkpoint, WeightFinding, are_equal, open_checkpoint, warn_of

from ..artifact import DeployError
from ..weights_file import file_beside
from .metadata import PackageMetadata, TensorDescription


def weights_beside(path: Path, metadata: PackageMetadata) -> dict[str, torch.Tensor]:
    """Return the weights that a package expects, by their names in its code; mapped, contiguous.

    Args:
        path: The package.
        metadata: Its metadata.
    Raises:
        DeployError: the file or a weight is missing, a weight differs in shape or dtype, or a tied weight has
            several values.
        CheckpointError: the file is refused.
    Warns:
        WeightsWarning: the file has unexpected keys (FE704), as for `bind`.
    """
    beside = file_beside(path)
    if not beside.exists():
        raise DeployError(f"{path} has no weights: pass a checkpoint, or put {beside.name} next to it")
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
                f"{path}: the weight {name} is {plain_name(found.dtype)}{list(found.shape)}, but the "
                f"program expects {wanted.dtype}{list(wanted.shape)}"
            )
    with real_execution():
        first, *others = (opened.tensor(name) for name in names)
        for name, other in zip(names[1:], others, strict=True):
            if not are_equal(first, other):
                raise DeployError(
                    f"{path}: {names[0]} and {name} differ, but are a single weight of the program"
                )
        return first.detach().contiguous()
