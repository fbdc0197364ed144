"""Constants whose values are known, stored in the package: no checkpoint contains them.

Masks and other literals of the model's code, and non-persistent buffers such as rotary frequencies. The
record is a safetensors file, so that a reader in any language has one parser for these and for weights.
"""

from __future__ import annotations

import io
import tempfile
from collections.abc import Collection
from pathlib import Path

import torch
from torch.export import ExportedProgram

from fakexport.container import Container
from fakexport.program import has_value
from fakexport.weights import DTYPES, Weight, open_checkpoint

from ..weights_file import FileLayout
from .package import CONSTANTS


def known_constants(program: ExportedProgram, names: Collection[str]) -> dict[str, torch.Tensor]:
    """Return the constants with a value among these names; they may be fake.

    A constant whose dtype safetensors does not support is left out: it is bound like a weight.
    """
    return {
        name: held
        for name, held in program.constants.items()
        if name in names
        and isinstance(held, torch.Tensor)
        and held.dtype in DTYPES.values()
        and has_value(held)
    }


def constants_record(constants: dict[str, torch.Tensor]) -> bytes:
    """Return the content of the record."""
    layout = FileLayout.of({name: Weight(tuple(held.shape), held.dtype) for name, held in constants.items()})
    content = io.BytesIO()
    layout.write(content, constants)
    return content.getvalue()


def read_constants(package: Container) -> dict[str, torch.Tensor]:
    """Return the constants of a package, on the CPU, in memory of their own.

    Raises:
        ArchiveError, CheckpointError: the record is damaged.
    """
    if CONSTANTS not in package.entries:
        return {}
    with tempfile.TemporaryDirectory(prefix="fakexport-") as folder:
        file = Path(folder, "constants.safetensors")
        file.write_bytes(package.record(CONSTANTS))
        opened = open_checkpoint(file)
        return {name: opened.tensor(name).clone() for name in opened.entries}
