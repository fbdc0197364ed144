"""ExecuTorch: a program for edge runtimes."""

from __future__ import annotations

import os
from typing import Literal

from torch.export import ExportedProgram

from fakexport.weights import CheckpointSource

from ..artifact import Artifact, CompiledFile, Report

__all__ = ["Backend", "compile_executorch", "open_executorch"]

Backend = Literal["portable", "xnnpack"]


def compile_executorch(
    program: ExportedProgram,
    path: str | os.PathLike[str],
    *,
    backend: Backend = "portable",
    report: Report | None = None,
) -> CompiledFile:
    raise NotImplementedError


def open_executorch(path: str | os.PathLike[str], *, checkpoint: CheckpointSource | None = None) -> Artifact:
    raise NotImplementedError
