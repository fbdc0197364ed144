"""What every compiled form of a program has in common: it runs on named tensors and gives named tensors."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, Protocol

import torch

from fakexport.diagnostics import Diagnostic
from fakexport.error import FakexportError

from .signature import Signature

__all__ = ["Artifact", "CompileFailure", "CompiledFile", "DeployError", "Report", "WeightsPlace"]

WeightsPlace = Literal["inside", "beside"]
"""Whether the weights are in the compiled file or in a .safetensors file beside it."""

Report = Callable[[str], None]
"""Takes a line of progress: what is being done now."""


class DeployError(FakexportError):
    """A program cannot be compiled, or what was compiled cannot be opened or run, in one line."""


class CompileFailure(DeployError):
    """What a compiler cannot take, as diagnostics.

    Args:
        diagnostics: One for each thing found, with the operator and the user's line.
    """

    def __init__(self, diagnostics: tuple[Diagnostic, ...]) -> None:
        super().__init__("; ".join(diagnostic.message for diagnostic in diagnostics))
        self.diagnostics = diagnostics


@dataclass(frozen=True)
class CompiledFile:
    """What a compilation wrote.

    Args:
        path: The file or folder that was asked for.
        files: All files that were written, `path` first; or all in the folder, sorted.
        size_bytes: Of all of them.
        seconds: What the compilation took, of wall time.
        is_cached: Whether it was taken from the cache.
        notes: What the user must know, as sentences.
    """

    path: Path
    files: tuple[Path, ...]
    size_bytes: int
    seconds: float
    is_cached: bool = False
    notes: tuple[str, ...] = ()


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
