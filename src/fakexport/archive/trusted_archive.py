"""Let torch read trusted archives that fakexport cannot read."""

from __future__ import annotations

import os

import torch
from torch.export import ExportedProgram

from fakexport._torch.tracing.program_schema import programs_of, reading_fault, unregistered_class
from fakexport.error import type_and_line
from fakexport.files.container import ArchiveError

from .manifest import ALONE, MethodManifest
from .payload import weights_payload
from .saved_object import unregistered

TRUSTED = "trusted: torch read the file, which can run code from it"
"""Note on an archive that torch loaded."""


def load_with_torch(path: str | os.PathLike[str], *, is_package: bool) -> dict[str, ExportedProgram]:
    """Load all programs of a package with torch's `load_pt2`, or the single program of another file."""
    try:
        return programs_of(os.fspath(path)) if is_package else {ALONE: torch.export.load(os.fspath(path))}
    except Exception as error:
        fault = reading_fault(os.fspath(path), error)
        name = unregistered_class(fault)
        reader = "torch's load_pt2" if is_package else "torch.export.load"
        reason = f"{reader} cannot read it: {type_and_line(fault)}" if name is None else unregistered(name)
        raise ArchiveError(path, reason) from error


def describe_trusted(program: ExportedProgram) -> MethodManifest:
    """Derive the manifest of a program that torch loaded."""
    weights = weights_payload(program)
    return MethodManifest(
        versions={},
        source="",
        device_map={},
        weights="inside" if weights.tensors else "none",
        tensors=weights.tensors,
    )
