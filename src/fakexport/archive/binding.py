"""Binding weights to a program, which may still be in its archive, or to a bundle."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any, overload

import torch
from torch.export import ExportedProgram

from fakexport.program.program_facts import facts_of
from fakexport.weights import CheckpointSource
from fakexport.weights import bind as bind_program

from .bundle import Bundle
from .bundle_binding import bind_bundle, own_part
from .loading import load

__all__ = ["bind"]


@overload
def bind(
    program: Bundle,
    checkpoint: CheckpointSource,
    *,
    device_map: str | Mapping[str, str] | None = None,
    dtype: torch.dtype | None = None,
    constants: Mapping[str, torch.Tensor] | None = None,
    **options: Any,
) -> Bundle: ...
@overload
def bind(
    program: ExportedProgram | str | os.PathLike[str],
    checkpoint: CheckpointSource,
    *,
    device_map: str | Mapping[str, str] | None = None,
    dtype: torch.dtype | None = None,
    constants: Mapping[str, torch.Tensor] | None = None,
    **options: Any,
) -> ExportedProgram: ...
def bind(
    program: Bundle | ExportedProgram | str | os.PathLike[str],
    checkpoint: CheckpointSource,
    *,
    device_map: str | Mapping[str, str] | None = None,
    dtype: torch.dtype | None = None,
    constants: Mapping[str, torch.Tensor] | None = None,
    **options: Any,
) -> Bundle | ExportedProgram:
    """The program with the weights of a checkpoint: all of them, exactly, or none.

    Args:
        program: A weight-less program, from `export` or `load`, or the path of its archive; or a bundle,
            whose methods all get their weights from the one checkpoint, those that they share as one tensor.
            A program that comes out of a bundle reads its part of the checkpoint, also after `retarget`, and
            out of an archive that it was saved to alone.
        checkpoint, device_map, dtype, constants, options: As for `weights.bind`. The device map of a bundle
            is for all its methods.
    Returns:
        A new program, which runs; of a bundle a new bundle.
    Raises:
        ArchiveError: the archive is refused, or is a bundle: `load_bundle` opens it.
        BindError, CheckpointError, ValueError: as `weights.bind` says; or what the methods of a bundle share
            would get different data.
    """
    if isinstance(program, Bundle):
        return bind_bundle(
            program, checkpoint, device_map=device_map, dtype=dtype, constants=constants, **options
        )
    opened = program if isinstance(program, ExportedProgram) else load(program)
    seen = own_part(checkpoint, facts_of(opened).prefix)
    return bind_program(opened, seen, device_map=device_map, dtype=dtype, constants=constants, **options)
