"""The safetensors file next to a compiled program: the place of each weight is known before it is written.

ONNX refers to data outside of the model by file, offset and length, and a safetensors file is a header and
then plain bytes. So the model can name the places at once, and any reader of ONNX finds the weights there as
soon as the file is written.

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

from fakexport._torch.real_execution import real_execution
from fakexport.fake import is_fake
from fakexport.files import inputs_protected, new_file
from fakexport.history import value_of
from fakexport.weights import DTYPES, CheckpointError, CheckpointSource, Weight, first_file, read_header

from .artifact import DeployError

OWNER = "fakexport.program"
"Metadata key of a file that was written with a compiled program: the program's id, which both have."

_NAME_OF = {dtype: name for name, dtype in DTYPES.items()}
_ALIGNMENT = 64
_LENGTH_BYTES = 8
_CHUNK_ELEMENTS = 1 << 22


@dataclass(frozen=True)
class FileLayout:
    """What a file will contain, and where.

    Args:
        weights: Weights by name.
        header: All bytes before the data.
        places: Offset in the file and length in bytes, by name, in the order of the file.
    """

    weights: Mapping[str, Weight]
    header: bytes
    places: Mapping[str, tuple[int, int]]

    @classmethod
    def of(cls, weights: Mapping[str, Weight], owner: str | None = None) -> FileLayout:
        """Return the layout: large elements first, so that each is at a multiple of its size; then by name.

        Args:
            weights: What the file will hold.
            owner: Id of the compiled program. Ids of the same length result in the same places.
        Raises:
            DeployError: a dtype that the format does not support.
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

    @property
    def size_bytes(self) -> int:
        """Size of the whole file."""
        return len(self.header) + sum(length for _, length in self.places.values())

    def is_that_of(self, path: Path) -> bool:
        """Return whether a file was written with a compiled program, and has tensors like these."""
        try:
            with inputs_protected():  # An earlier command's output is not an input of this one.
                header = read_header(path)
        except CheckpointError:
            return False
        found = {name: Weight(entry.shape, entry.dtype) for name, entry in header.entries.items()}
        return OWNER in header.metadata and found == self.weights

    def write(self, file: IO[bytes], tensors: Mapping[str, torch.Tensor]) -> None:
        """Write the file in steps: weights that are mapped from a file take no memory.

        The library's own `save_file` first copies all of them to bytes.
        """
        file.write(self.header)
        for name in self.places:
            for chunk in raw_chunks(tensors[name]):
                file.write(chunk)

    def write_beside(self, path: Path, tensors: Mapping[str, torch.Tensor]) -> None:
        """Write the file atomically, replacing only a file that was written in the same way.

        Raises:
            DeployError: the existing file is something else, possibly a checkpoint.
            FileWriteError: it cannot be written; the previous file is kept.
        """
        if path.exists() and not self.is_that_of(path):
            raise DeployError(f"{path} already exists with other content; choose another name for OUT")
        with new_file(path) as file:
            self.write(file, tensors)


def file_beside(path: Path) -> Path:
    """Return `model.aoti.safetensors` for `model.aoti.pt2`."""
    return path.with_suffix(".safetensors")


def check_owner(compiled: Path, beside: Path, checkpoint: CheckpointSource | None, owner: str) -> bool:
    """Refuse the file next to a compiled program if it was written with a different program.

    The two are written one after the other, so that an interruption leaves one of them as it was before, and
    their tensors may look the same. A file without an origin, or with another name, is a checkpoint: it is
    checked against what the program expects.

    Returns:
        Whether the weights were written with it, under the same names.
    Raises:
        DeployError: it belongs to another program.
        CheckpointError: it is refused.
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
    """Yield the elements of a tensor in row-major order, in little-endian chunks."""
    with real_execution():
        real = value_of(tensor) if is_fake(tensor) else tensor.detach()
        flat = real.contiguous().reshape(-1)
        for start in range(0, flat.numel(), _CHUNK_ELEMENTS):
            yield flat[start : start + _CHUNK_ELEMENTS].cpu().view(torch.uint8).numpy().data
