"""A CMake project in C++ that runs a program compiled by AOTInductor."""

from __future__ import annotations

import os

from torch.export import ExportedProgram

from ..artifact import CompiledFile, Report

__all__ = ["write_cpp_project"]


def write_cpp_project(
    program: ExportedProgram,
    folder: str | os.PathLike[str],
    *,
    cache: str | os.PathLike[str] | None = None,
    report: Report | None = None,
) -> CompiledFile:
    raise NotImplementedError
