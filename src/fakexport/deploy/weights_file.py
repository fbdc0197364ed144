"""Write the safetensors file next to a compiled program. The layout is computed before the file is written.

ONNX models refer to external data by file, offset and length. A safetensors file is a header followed by
plain bytes, so offsets and lengths are known before the file exists, and any ONNX reader finds the weights in
the file.

Source: the format's description in the README of huggingface/safetensors; ONNX, docs/ExternalData.md.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import IO

import torch

from fakexport._torch.operators.real_execution import real_execution
from fakexport.archive.weights import (
    DTYPES,
    Checkpoint,
    CheckpointError,
    CheckpointSource,
    ExpectedWeights,
    Weight,
    first_file,
    fitting_weights,
    read_header,
    verified,
)
from fakexport.emulation.fake import is_fake
from fakexport.emulation.history import constant_value
from fakexport.files import inputs_protected, new_file
from fakexport.files.documents import Recipe

from .artifact import DeployError

OWNER = "fakexport.program"
"""Metadata key in a weights file. Its value is the id of the compiled program that the file belongs to."""

_NAME_OF = {dtype: name for name, dtype in DTYPES.items()}
_ALIGNMENT = 64
_LENGTH_BYTES = 8
_CHUNK_ELEMENTS = 1 << 22


@dataclass(frozen=True)
class FileLayout:
    """The contents and layout of a weights file that will be written.

    `header` contains all bytes before the data. `places` maps each name to the tensor's offset in the file
    and its length, both in bytes, in file order.
    """

    weights: Mapping[str, Weight]
    header: bytes
    places: Mapping[str, tuple[int, int]]

    @classmethod
    def of(cls, weights: Mapping[str, Weight], owner: str | None = None) -> FileLayout:
        """Create a layout. To align all weights, they are sorted by decreasing element size, and then by
        name.

        `owner` is the id of the compiled program. Only the length of the id affects the layout.
        """
        for name, weight in weights.items():
            if weight.dtype not in _NAME_OF:
                raise DeployError(f"safetensors cannot store the dtype of the weight {name}, {weight}")
        ordered = sorted(weights, key=lambda name: (-weights[name].dtype.itemsize, name))
        fields: dict[str, object] = {} if owner is None else {"__metadata__": {OWNER: owner}}
        places, end = {}, 0
        for name in ordered:
            weight = weights[name]
            begin, end = end, end + prod(weight.shape) * weight.dtype.itemsize
            places[name] = begin, end - begin
            fields[name] = {
                "dtype": _NAME_OF[weight.dtype],
                "shape": list(weight.shape),
                "data_offsets": [begin, end],
            }
        text = json.dumps(fields, separators=(",", ":"), ensure_ascii=True).encode()
        text += b" " * (-(_LENGTH_BYTES + len(text)) % _ALIGNMENT)
        header = len(text).to_bytes(_LENGTH_BYTES, "little") + text
        return cls(
            dict(weights), header, {name: (len(header) + at, length) for name, (at, length) in places.items()}
        )

    def is_that_of(self, path: Path) -> bool:
        """Return whether a file has a compiled program's weights with the tensors of this layout."""
        try:
            with inputs_protected():  # The file is an earlier output, so allow it to be replaced.
                header = read_header(path)
        except CheckpointError:
            return False
        found = {name: Weight(entry.shape, entry.dtype) for name, entry in header.entries.items()}
        return OWNER in header.metadata and found == self.weights

    def write(self, file: IO[bytes], tensors: Mapping[str, torch.Tensor]) -> None:
        """Write the file in chunks, so that memory-mapped weights do not have to fit in memory all at once.

        The safetensors library's `save_file` would first copy all weights to bytes.
        """
        file.write(self.header)
        for name in self.places:
            for chunk in raw_chunks(tensors[name]):
                file.write(chunk)

    def write_beside(self, path: Path, tensors: Mapping[str, torch.Tensor]) -> None:
        """Write the file atomically. Only a weights file with the same tensors is replaced."""
        if path.exists() and not self.is_that_of(path):
            raise DeployError(f"{path} already exists with different content; choose another name for OUT")
        with new_file(path) as file:
            self.write(file, tensors)


def fitted_weights(
    expected: ExpectedWeights,
    opened: Checkpoint,
    *,
    name: str,
    recipes: tuple[Recipe, ...] = (),
    check_finite: bool | None = None,
) -> dict[str, torch.Tensor]:
    """Return all expected weights of a checkpoint as contiguous CPU tensors. Raises and warns like `bind`."""
    found = verified(expected, opened, name=name, recipes=recipes)
    row_major = {
        name: torch.empty(each.shape, dtype=each.dtype, device="meta") for name, each in expected.all.items()
    }
    return fitting_weights(expected, opened, found, row_major, check_finite=check_finite).tensors


def file_beside(path: Path) -> Path:
    """Return the path of the weights file: `model.aoti.safetensors` for `model.aoti.pt2`."""
    return path.with_suffix(".safetensors")


def check_owner(compiled: Path, beside: Path, checkpoint: CheckpointSource | None, owner: str) -> bool:
    """Reject the weights file next to a compiled program if it was written with a different program.

    The program and its weights file are written one after the other, so an interruption can leave an old
    version of one of them, with tensors of the same names and shapes. A file that has no owner or a different
    name is treated as a checkpoint: it is checked against the weights that the program needs.

    Return whether the weights file was written with the program. If so, it uses the program's names.
    """
    is_beside = beside.exists() and (checkpoint is None or _is_file(checkpoint, beside))
    written_with = read_header(beside).metadata.get(OWNER) if is_beside else None
    if written_with not in (None, owner):
        raise DeployError(
            f"{beside} was written for a different {compiled.name}: compile again, or rename it to "
            "use it as a checkpoint"
        )
    return written_with is not None


def _is_file(checkpoint: CheckpointSource, file: Path) -> bool:
    if not isinstance(checkpoint, str | os.PathLike):
        return False
    begin = first_file(Path(checkpoint))
    return begin.exists() and file.samefile(begin)


def raw_chunks(tensor: torch.Tensor) -> Iterator[memoryview]:
    """Yield the elements of a tensor in row-major order, as little-endian bytes in chunks."""
    with real_execution():
        real = constant_value(tensor) if is_fake(tensor) else tensor.detach()
        flat = real.contiguous().reshape(-1)
        for start in range(0, flat.numel(), _CHUNK_ELEMENTS):
            yield flat[start : start + _CHUNK_ELEMENTS].cpu().view(torch.uint8).numpy().data
