"""Binding weights to a program that may still be in its archive."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

import torch
from torch.export import ExportedProgram

from fakexport.weights import CheckpointSource
from fakexport.weights import bind as bind_program

from .loading import load

__all__ = ["bind"]


def bind(
    program: ExportedProgram | str | os.PathLike[str],
    checkpoint: CheckpointSource,
    *,
    device_map: str | Mapping[str, str] | None = None,
    dtype: torch.dtype | None = None,
    constants: Mapping[str, torch.Tensor] | None = None,
    **options: Any,
) -> ExportedProgram:
    """The program with the weights of a checkpoint: all of them, exactly, or none.

    Args:
        program: A weight-less program, from `export` or `load`, or the path of its archive.
        checkpoint, device_map, dtype, constants, options: As for `weights.bind`.
    Returns:
        A new program, which runs.
    Raises:
        ArchiveError: the archive is refused.
        BindError, CheckpointError, ValueError: as `weights.bind` says.
    """
    opened = program if isinstance(program, ExportedProgram) else load(program)
    return bind_program(
        opened, checkpoint, device_map=device_map, dtype=dtype, constants=constants, **options
    )
