"""What every compiled form of a program has in common: it runs on named tensors and gives named tensors."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Literal, Protocol

import torch

from .signature import Signature

__all__ = ["Artifact", "ArtifactKind", "DeployError", "artifact_kind"]

ArtifactKind = Literal["program"]


class DeployError(Exception):
    """A program cannot be compiled, or what was compiled cannot be opened or run, in one line."""


class Artifact(Protocol):
    """A program in a form that runs, opened."""

    @property
    def signature(self) -> Signature:
        """What a call takes and gives."""

    def __call__(self, inputs: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        """The tensors of the outputs by name, as `run` gives them for the program.

        Raises:
            UnsuitableInputs: before anything runs.
        """


def artifact_kind(path: Path) -> ArtifactKind:
    """What a file is, by its content.

    Raises:
        OSError: it cannot be read.
    """
    with path.open("rb"):
        return "program"
