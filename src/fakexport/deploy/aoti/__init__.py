"""AOTInductor: a program compiled to native code."""

from __future__ import annotations

import os

from torch.export import ExportedProgram

from fakexport.weights import CheckpointSource

from ..artifact import Artifact, CompiledFile, Report, WeightsPlace

__all__ = ["compile_aoti", "open_aoti"]


def compile_aoti(
    program: ExportedProgram,
    path: str | os.PathLike[str],
    *,
    weights: WeightsPlace = "inside",
    cache: str | os.PathLike[str] | None = None,
    report: Report | None = None,
) -> CompiledFile:
    raise NotImplementedError


def open_aoti(path: str | os.PathLike[str], *, checkpoint: CheckpointSource | None = None) -> Artifact:
    raise NotImplementedError
