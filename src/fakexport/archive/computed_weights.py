"""Store the values of computed weights, which checkpoints may omit, in a weight-less archive."""

from __future__ import annotations

import math

import torch
from torch.export import ExportedProgram

from fakexport._torch.operators.real_execution import real_execution
from fakexport.archive.weights import computed_of
from fakexport.emulation.history import bits
from fakexport.files.container import Container, Content

from .manifest import MOST_COMPUTED_BYTES, MethodManifest


def computed_values(program: ExportedProgram) -> dict[str, Content | None]:
    """Return the computed weights of a program by name; None for a weight that has no value.

    The content is the elements in row-major order, or a single element if all elements are equal.
    """
    values = computed_of(program, most_bytes=MOST_COMPUTED_BYTES)
    return {name: None if value is None else _content(value) for name, value in sorted(values.items())}


def _content(value: torch.Tensor) -> bytes:
    with real_execution():
        content: bytes = bits(value.detach()).numpy().tobytes()
    first = content[: value.itemsize]
    return first if content == first * value.numel() else content


def read_computed(container: Container, manifest: MethodManifest) -> dict[str, torch.Tensor | None]:
    """Read the computed weights of a program, by name; None for a weight that has no stored value."""
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
