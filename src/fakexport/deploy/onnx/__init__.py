"""ONNX: a program for ONNX Runtime and what else reads it."""

from __future__ import annotations

import os

from torch.export import ExportedProgram

from fakexport.weights import CheckpointSource

from ..artifact import Artifact, CompiledFile, Report, WeightsPlace

__all__ = ["compile_onnx", "open_onnx"]


def compile_onnx(
    program: ExportedProgram,
    path: str | os.PathLike[str],
    *,
    weights: WeightsPlace = "inside",
    report: Report | None = None,
) -> CompiledFile:
    raise NotImplementedError


def open_onnx(path: str | os.PathLike[str], *, checkpoint: CheckpointSource | None = None) -> Artifact:
    raise NotImplementedError
