"""The interface of all compiled forms: a call maps input tensors by name to output tensors by name."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, Protocol

import torch

from fakexport.error import FakexportError
from fakexport.rules.diagnostics import Diagnostic

from .signature import Signature

WeightsPlace = Literal["inside", "beside"]
"""Where the weights are: in the compiled file, or in a `.safetensors` file next to it."""

Names = Literal["optimum"]
"""Whose names the inputs, outputs and dynamic axes of an ONNX file have, if not those of the program."""

Report = Callable[[str], None]
"""Progress callback, called with a line of text for each step."""


class DeployError(FakexportError):
    """A program cannot be compiled, or a compiled file cannot be opened or run. The message is one line."""


class CompileFailure(DeployError):
    """A compiler does not support some parts of the program. `diagnostics` has one entry per part."""

    def __init__(self, diagnostics: tuple[Diagnostic, ...]) -> None:
        super().__init__("; ".join(diagnostic.message for diagnostic in diagnostics))
        self.diagnostics = diagnostics


def silent(line: str) -> None:
    """Discard a line of progress text."""


@dataclass(frozen=True)
class CompiledFile:
    """The files written by a compilation.

    Args:
        path: The requested file or folder.
        files: All written files. `path` comes first; the files of a folder are sorted.
        size_bytes, seconds: Total size of the files, and wall time of the compilation.
        is_cached: Whether the result came from the cache.
        notes: Sentences to show to the user.
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
        """Create the result. `begun` is `time.monotonic()` at the start of the compilation."""
        found = tuple(files)
        size = sum(file.stat().st_size for file in found)
        return cls(path, found, size, time.monotonic() - begun, is_cached, tuple(notes))


def refuse_to_overwrite(folder: Path) -> None:
    """Raise a `DeployError` unless a folder can be created at this path, or an empty one exists there."""
    if folder.is_symlink() or (folder.exists() and not folder.is_dir()):
        raise DeployError(f"{folder} is not a folder: pass a new folder")
    if folder.exists() and any(folder.iterdir()):
        raise DeployError(f"{folder} is not empty: pass a new folder")
    if not folder.absolute().parent.is_dir():
        raise DeployError(f"{folder.parent}: no such folder")


class Artifact(Protocol):
    """A compiled or exported program that was opened and can be called."""

    @property
    def signature(self) -> Signature:
        """Inputs and outputs of a call."""

    def __call__(self, inputs: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        """Run the program and return its output tensors by name, as `run` does."""
