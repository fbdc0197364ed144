"""Files that the user trusts: torch reads them, and runs what they say."""

from __future__ import annotations

import os

import torch
from torch.export import ExportedProgram

from fakexport._torch.stock_reading import reading_fault, unregistered_class

from .error import ArchiveError
from .manifest import Manifest
from .payload import weights_payload

__all__ = ["load_with_torch"]

_TRUSTED = "trusted: torch read it and ran what it says"


def load_with_torch(path: str | os.PathLike[str]) -> tuple[ExportedProgram, Manifest, str]:
    """What `torch.export.load` makes of a file, a description of its weights, and a note.

    Raises:
        ArchiveError: torch cannot read it; in one line.
    """
    try:
        program = torch.export.load(os.fspath(path))
    except Exception as error:
        raise ArchiveError(path, _reason(reading_fault(os.fspath(path), error))) from error
    weights = weights_payload(program)
    manifest = Manifest(
        versions={},
        source="",
        device_map={},
        weights="inside" if weights.tensors else "none",
        tensors=weights.tensors,
    )
    return program, manifest, _TRUSTED


def _reason(fault: Exception) -> str:
    name = unregistered_class(fault)
    if name is not None:
        return f"the C++ class {name} is not registered: name the file of its library with --library"
    first = (str(fault).splitlines() or [""])[0]
    return f"torch.export.load does not read it: {type(fault).__name__}: {first}"
