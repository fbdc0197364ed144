"""Weights that a checkpoint may lack: their values, in the archive of a program without weights."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping

import torch
from torch.export import ExportedProgram

from fakexport._torch.real_execution import real_execution
from fakexport.container import Container, Content
from fakexport.history import bits
from fakexport.weights import computed_of

from .manifest import MOST_COMPUTED_BYTES, MethodManifest


class ComputedRecords:
    """The records of the values, for all programs of an archive: equal values are written once.

    A record has the elements row by row, or only one if all of them are equal.
    """

    def __init__(self) -> None:
        self.records: dict[str, Content] = {}
        self._known: dict[bytes, str] = {}

    def add(self, program: ExportedProgram) -> dict[str, str | None]:
        """Return the record of each computed weight of a program, for its manifest."""
        return {
            name: None if value is None else self._record(value)
            for name, value in sorted(computed_of(program, most_bytes=MOST_COMPUTED_BYTES).items())
        }

    def _record(self, value: torch.Tensor) -> str:
        with real_execution():
            content = _bytes(value.detach())
        key = hashlib.sha256(content).digest()
        if key not in self._known:
            self._known[key] = f"extra/fakexport/computed_{len(self._known)}"
            self.records[self._known[key]] = content
        return self._known[key]


def _bytes(value: torch.Tensor) -> bytes:
    content: bytes = bits(value).numpy().tobytes()
    first = content[: value.itemsize]
    return first if content == first * value.numel() else content


def read_computed(container: Container, manifest: MethodManifest) -> dict[str, torch.Tensor | None]:
    """Return the values of the computed weights of a program, from records of the sizes that they need."""
    entries = {name: entry for entry in manifest.tensors for name in (entry.name, *entry.aliases)}
    found: dict[str, torch.Tensor | None] = {}
    for name, record in manifest.computed.items():
        if record is None:
            found[name] = None
            continue
        entry = entries[name]
        content = bytearray(container.record(record))
        dtype = getattr(torch, entry.dtype)
        with real_execution():
            stored = torch.frombuffer(content, dtype=dtype) if content else torch.empty(0, dtype=dtype)
            is_whole = stored.numel() == math.prod(entry.shape)
            found[name] = stored.reshape(entry.shape) if is_whole else stored.expand(entry.shape)
    return found


def empty_values(computed: Mapping[str, str | None]) -> dict[str, torch.Tensor | None]:
    """Return values without data, for a report that tells from a description what an archive has."""
    return {
        name: None if record is None else torch.empty((), device="meta") for name, record in computed.items()
    }
