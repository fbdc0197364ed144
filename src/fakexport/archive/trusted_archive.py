"""Files that the user trusts: torch reads them, and runs what they say."""

from __future__ import annotations

import os

import torch
from torch.export import ExportedProgram

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
        first = (str(error).splitlines() or [""])[0]
        what = f"torch.export.load does not read it: {type(error).__name__}: {first}"
        raise ArchiveError(path, what) from error
    weights = weights_payload(program)
    manifest = Manifest(
        versions={},
        source="",
        device_map={},
        weights="inside" if weights.tensors else "none",
        tensors=weights.tensors,
    )
    return program, manifest, _TRUSTED
