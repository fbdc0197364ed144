"""Read tensor files that contain a program's inputs or a LoRA adapter, and write outputs to tensor files."""

from __future__ import annotations

import math
import os
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from torch.export import ExportedProgram

from fakexport.archive.weights import open_checkpoint
from fakexport.files import new_file
from fakexport.models.sources import SCALING, AdapterFolder, input_name

from .artifact import Artifact
from .signature import InputMismatchError, InputTensor, Signature

_LAYER = re.compile(r"(?P<layer>.+)\.lora_(?:embedding_)?A(?:\.weight)?")
_RANK_DIM = {"lora_a_weight": 0, "lora_b_weight": 1, "lora_embedding_a": 0, "lora_embedding_b": 1}


def adapter_inputs(
    adapter: str | Path, program: ExportedProgram | Artifact | Signature
) -> dict[str, torch.Tensor]:
    """Convert a LoRA adapter to inputs of a program: the adapter's matrices, and the scaling factor of each
    layer.

    The adapter's rank may be smaller than the program's. The matrices are then padded with zeros, which does
    not change the results. Layers that the adapter does not have get matrices of zeros.

    Args:
        adapter: The folder of a peft LoRA adapter.
        program: The program, bound or not, or a compiled form of it.

    Returns:
        CPU tensors by input name.

    Raises:
        InputMismatchError: The program has no adapter inputs, or this adapter does not fit them. The message
            is a single line.
        SourceError, CheckpointError: The folder is not an adapter, or its weights file is rejected.

    Example:
        >>> program = export(lambda: nn.Linear(4, 2), (torch.zeros(3, 4),))
        >>> adapter_inputs("nowhere", program)
        Traceback (most recent call last):
        fakexport...SourceError: nowhere is not a PEFT adapter: no adapter_config.json
    """
    folder = AdapterFolder.read(adapter)
    signature = _signature_of(program)
    wanted = {tensor.name: tensor for tensor in signature.inputs}
    if not takes_adapter(signature):
        raise InputMismatchError("the program has no adapter inputs: export it with --adapter-mode inputs")
    file = open_checkpoint(folder.path)
    given: dict[str, torch.Tensor] = {}
    layers = set()
    for key in file.entries:
        name = input_name(key)
        if name not in wanted:
            raise InputMismatchError(f"{folder.path} contains {key}, but the program has no input for it")
        given[name] = _fitted(file.tensor(key), wanted[name], key)
    for layer, rank in _ranks(file.entries):
        name = input_name(f"{layer}.{SCALING}")
        layers.add(name.removesuffix(SCALING))
        given[name] = torch.tensor(_scaling(folder.settings, layer, rank), dtype=torch.float32)
    for name, tensor in wanted.items():
        layer, found, rest = name.rpartition("lora_")
        if found and name not in given:
            if layer in layers or rest.startswith("magnitude"):
                raise InputMismatchError(f"{folder.path} has no tensor for the input {name}")
            given[name] = torch.zeros(
                [size.plus for size in tensor.shape], dtype=getattr(torch, tensor.dtype)
            )
    return given


def takes_adapter(signature: Signature) -> bool:
    """Return whether a program takes an adapter as inputs."""
    return any(tensor.name.endswith(f"_{SCALING}") for tensor in signature.inputs)


def _signature_of(program: ExportedProgram | Artifact | Signature) -> Signature:
    if isinstance(program, Signature):
        return program
    return Signature.of(program) if isinstance(program, ExportedProgram) else program.signature


def _fitted(tensor: torch.Tensor, wanted: InputTensor, key: str) -> torch.Tensor:
    """Convert a tensor to the dtype of an input, and pad it with zeros to the input's LoRA rank."""
    sizes = [size.plus for size in wanted.shape]
    dim = next((dim for end, dim in _RANK_DIM.items() if wanted.name.endswith(end)), None)
    fits = len(sizes) == tensor.dim() and all(
        own <= size if index == dim else own == size
        for index, (own, size) in enumerate(zip(tensor.shape, sizes, strict=False))
    )
    if not fits:
        raise InputMismatchError(
            f"{key} has shape {list(tensor.shape)}, but the program expects {sizes}"
            + (", or a smaller rank" if dim is not None else "")
        )
    fitted = torch.zeros(sizes, dtype=getattr(torch, wanted.dtype))
    fitted[tuple(slice(size) for size in tensor.shape)] = tensor
    return fitted


def _ranks(entries: Mapping[str, Any]) -> Iterator[tuple[str, int]]:
    """Yield each layer of an adapter with its LoRA rank."""
    for key, entry in entries.items():
        if match := _LAYER.fullmatch(key):
            yield match["layer"], entry.shape[0]


def _scaling(settings: Mapping[str, Any], layer: str, rank: int) -> float:
    """Return the scaling factor of a layer, computed as in peft."""
    alphas = settings.get("alpha_pattern") or {}
    patterns = (pattern for pattern in alphas if re.match(rf"(.*\.)?({pattern})$", layer))
    alpha = alphas.get(next(patterns, None), settings.get("lora_alpha", 8))
    return float(alpha) / (math.sqrt(rank) if settings.get("use_rslora") else rank)


def write_outputs(path: str | os.PathLike[str], outputs: Mapping[str, torch.Tensor]) -> None:
    """Write tensors to a safetensors file, atomically. The tensors may be on any device.

    Tensors that share memory are written separately. If the file cannot be written, an existing file is kept.
    """
    from safetensors.torch import save

    own = {name: tensor.detach().to("cpu", copy=True).contiguous() for name, tensor in outputs.items()}
    content = save(own)
    with new_file(path) as file:
        file.write(content)


def read_inputs(path: Path) -> dict[str, torch.Tensor]:
    """Read the tensors of a file by name. Return copies, because a program may write into its inputs."""
    file = open_checkpoint(path)
    return {name: file.tensor(name).clone() for name in file.entries}
