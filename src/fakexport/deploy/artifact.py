"""The interface of every compiled form of a program: it takes named tensors and returns named tensors."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, Protocol

import torch

from fakexport.diagnostics import Diagnostic
from fakexport.error import FakexportError

from .signature import Signature

WeightsPlace = Literal["inside", "beside"]
"Whether the weights are in the compiled file or in a .safetensors file next to it."

Report = Callable[[str], None]
"Called with each line of progress: the current step."


class DeployError(FakexportError):
    """A program cannot be compiled, or what was compiled cannot be opened or run, in one line."""


class CompileFailure(DeployError):
    """What a compiler does not support, as diagnostics.

    Args:
        diagnostics: One for each finding, with the operator and the user's line.
    """

    def __init__(self, diagnostics: tuple[Diagnostic, ...]) -> None:
        super().__init__("; ".join(diagnostic.message for diagnostic in diagnostics))
        self.diagnostics = diagnostics


def silent(line: str) -> None:
    """Report nothing."""


@dataclass(frozen=True)
class CompiledFile:
    """The files written by a compilation.

    Args:
        path: The requested file or folder.
        files: All files that were written, `path` first; or all in the folder, sorted.
        size_bytes: Total size of the files.
        seconds: Wall time of the compilation.
        is_cached: Whether it came from the cache.
        notes: What the user should know, as sentences.
    """

    path: Path
    files: tuple[Path, ...]
    size_bytes: int
    seconds: float
    is_cached: bool = False
    notes: tuple[str, ...] = ()

    @classmethod
    def of(
        cls,
        path: Path,
        files: Iterable[Path],
        begun: float,
        *,
        notes: Iterable[str] = (),
        is_cached: bool = False,
    ) -> CompiledFile:
        """Return what was written; `begun` is `time.monotonic()` at the start."""
        found = tuple(files)
        size = sum(file.stat().st_size for file in found)
        return cls(path, found, size, time.monotonic() - begun, is_cached, tuple(notes))


class Artifact(Protocol):
    """An opened program in a form that runs."""

    @property
    def signature(self) -> Signature:
        """Inputs and outputs of a call."""

    def __call__(self, inputs: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        """Return the output tensors by name, as `run` does for the program.

        Raises:
            UnsuitableInputs: before anything runs.
        """
