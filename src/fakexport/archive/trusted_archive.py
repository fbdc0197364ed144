"""Files that the user trusts: torch reads them, which can run code from them."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import TypeVar

import torch
from torch.export import ExportedProgram

from fakexport._torch.stock_reading import programs_of, reading_fault, unregistered_class
from fakexport.container import ArchiveError
from fakexport.error import type_and_line

from .manifest import MethodManifest
from .payload import weights_payload
from .saved_object import unregistered

T = TypeVar("T")

TRUSTED = "trusted: torch read it, which can run code from the file"
"Note on such a file."


def load_with_torch(path: str | os.PathLike[str]) -> ExportedProgram:
    """Load a file with `torch.export.load`.

    Raises:
        ArchiveError: torch cannot read it; in one line.
    """
    return _read(path, torch.export.load, "torch.export.load")


def load_all_with_torch(path: str | os.PathLike[str]) -> dict[str, ExportedProgram]:
    """Load a file of several programs with torch's `load_pt2`, by name.

    Raises:
        ArchiveError: as for `load_with_torch`.
    """
    return _read(path, programs_of, "torch's load_pt2")


def describe_trusted(program: ExportedProgram) -> MethodManifest:
    """Describe a program that torch read."""
    weights = weights_payload(program)
    return MethodManifest(
        versions={},
        source="",
        device_map={},
        weights="inside" if weights.tensors else "none",
        tensors=weights.tensors,
    )


def _read(path: str | os.PathLike[str], read: Callable[[str], T], reader: str) -> T:
    try:
        return read(os.fspath(path))
    except Exception as error:
        raise ArchiveError(path, _reason(reading_fault(os.fspath(path), error), reader)) from error


def _reason(fault: Exception, reader: str) -> str:
    name = unregistered_class(fault)
    if name is not None:
        return unregistered(name)
    return f"{reader} cannot read it: {type_and_line(fault)}"
