"""Weights beside a package, in a safetensors file."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from io import BufferedWriter
from pathlib import Path

import torch

from fakexport._torch.real_execution import real_execution
from fakexport.fake import is_fake, value_of
from fakexport.weights.safetensors_header import DTYPES

from ..artifact import DeployError

__all__ = ["file_beside", "write_weights"]

_CHUNK_ELEMENTS = 1 << 22
_NAMES = {dtype: name for name, dtype in DTYPES.items()}


def file_beside(package: Path) -> Path:
    """`model.aoti.safetensors` for `model.aoti.pt2`."""
    return package.with_suffix(".safetensors")


def write_weights(file: BufferedWriter, tensors: Mapping[str, torch.Tensor]) -> None:
    """Writes tensors as safetensors, in steps: weights that are mapped from a file take no memory.

    The library's own `save_file` first makes bytes of all of them. Each tensor begins at a multiple of what
    one of its elements takes.

    Raises:
        DeployError: the format has no such dtype.
    """
    header, offset = {}, 0
    ordered = sorted(tensors.items(), key=lambda item: (-item[1].itemsize, item[0]))
    for name, tensor in ordered:
        if tensor.dtype not in _NAMES:
            raise DeployError(
                f"{name} is {tensor.dtype}, which safetensors cannot say; put the weights inside"
            )
        end = offset + tensor.numel() * tensor.itemsize
        header[name] = {
            "dtype": _NAMES[tensor.dtype],
            "shape": list(tensor.shape),
            "data_offsets": [offset, end],
        }
        offset = end
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 64 + 56)  # With the 8 bytes of its length, it ends at a multiple of 64.
    file.write(len(text).to_bytes(8, "little"))
    file.write(text)
    for _, tensor in ordered:
        for chunk in _chunks(tensor):
            file.write(chunk)


def _chunks(tensor: torch.Tensor) -> Iterator[memoryview]:
    with real_execution():
        real = value_of(tensor) if is_fake(tensor) else tensor.detach()
        flat = real.contiguous().reshape(-1)
        for start in range(0, flat.numel(), _CHUNK_ELEMENTS):
            yield flat[start : start + _CHUNK_ELEMENTS].cpu().view(torch.uint8).numpy().data
