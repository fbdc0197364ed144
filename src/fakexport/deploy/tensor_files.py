"""Files of tensors: inputs of a program, a LoRA adapter as inputs, and outputs."""

from __future__ import annotations

import math
import os
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from torch.export import ExportedProgram

from fakexport.files import new_file
from fakexport.sources import SCALING, AdapterFolder, input_name
from fakexport.weights import open_checkpoint

from .artifact import Artifact
from .signature import InputTensor, Signature, UnsuitableInputs

_LAYER = re.compile(r"(?P<layer>.+)\.lora_(?:embedding_)?A(?:\.weight)?")
_RANK_DIM = {"lora_a_weight": 0, "lora_b_weight": 1, "lora_embedding_a": 0, "lora_embedding_b": 1}


def adapter_inputs(
    adapter: str | Path, program: ExportedProgram | Artifact | Signature
) -> dict[str, torch.Tensor]:
    """Return the inputs that a program takes an adapter as: its matrices, and the factor of each layer.

    The rank may be smaller than that of the program: rows and columns of zeros are added, which changes no
    result. Layers of the program that the adapter does not have get zeros.

    Args:
        adapter: The folder of a LoRA adapter of peft.
        program: The program, bound or not, or what it was compiled to.
    Returns:
        Tensors by the names of inputs, on the CPU.
    Raises:
        UnsuitableInputs: The program takes no adapter, or not this one. One line.
        SourceError, CheckpointError: It is not such a folder, or its file is refused.

    Example:
        >>> program = export(lambda: nn.Linear(4, 2), (torch.zeros(3, 4),))
        >>> adapter_inputs("nowhere", program)
        Traceback (most recent call last):
        fakexport.sources.source_error.SourceError: nowhere is not a PEFT adapter: no adapter_config.json
    """
    folder = AdapterFolder.read(adapter)
    signature = _signature_of(program)
    wanted = {tensor.name: tensor for tensor in signature.inputs}
    if not takes_adapter(signature):
        raise UnsuitableInputs("the program takes no adapter as inputs: export it with --adapter-mode inputs")
    file = open_checkpoint(folder.path)
    given: dict[str, torch.Tensor] = {}
    layers = set()
    for key in file.entries:
        name = input_name(key)
        if name not in wanted:
            raise UnsuitableInputs(f"{folder.path} has {key}, which the program has no input for")
        given[name] = _fitted(file.tensor(key), wanted[name], key)
    for layer, rank in _ranks(file.entries):
        name = input_name(f"{layer}.{SCALING}")
        layers.add(name.removesuffix(SCALING))
        given[name] = torch.tensor(_scaling(folder.settings, layer, rank), dtype=torch.float32)
    for name, tensor in wanted.items():
        layer, found, rest = name.rpartition("lora_")
        if found and name not in given:
            if layer in layers or rest.startswith("magnitude"):
                raise UnsuitableInputs(f"{folder.path} has nothing for the input {name}")
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
    """Return a tensor in the dtype of the input, with zeros up to its rank."""
    sizes = [size.plus for size in wanted.shape]
    dim = next((dim for end, dim in _RANK_DIM.items() if wanted.name.endswith(end)), None)
    fits = len(sizes) == tensor.dim() and all(
        own <= size if index == dim else own == size
        for index, (own, size) in enumerate(zip(tensor.shape, sizes, strict=False))
    )
    if not fits:
        raise UnsuitableInputs(
            f"{key} has shape {list(tensor.shape)}, and the program takes {sizes}"
            + (", or less of the rank" if dim is not None else "")
        )
    fitted = torch.zeros(sizes, dtype=getattr(torch, wanted.dtype))
    fitted[tuple(slice(size) for size in tensor.shape)] = tensor
    return fitted


def _ranks(entries: Mapping[str, Any]) -> Iterator[tuple[str, int]]:
    """Yield each layer with its rank."""
    for key, entry in entries.items():
        if match := _LAYER.fullmatch(key):
            yield match["layer"], entry.shape[0]


def _scaling(settings: Mapping[str, Any], layer: str, rank: int) -> float:
    """Return the factor of a layer, as peft computes it."""
    alphas = settings.get("alpha_pattern") or {}
    patterns = (pattern for pattern in alphas if re.match(rf"(.*\.)?({pattern})$", layer))
    alpha = alphas.get(next(patterns, None), settings.get("lora_alpha", 8))
    return float(alpha) / (math.sqrt(rank) if settings.get("use_rslora") else rank)


def write_outputs(path: str | os.PathLike[str], outputs: Mapping[str, torch.Tensor]) -> None:
    """Write tensors as a safetensors file, atomically.

    Args:
        path: The file; an existing one is replaced when the new one is complete.
        outputs: Tensors by name, on any device. Tensors that share memory are written separately.
    Raises:
        FileWriteError: it cannot be written; the previous file is kept.
        ModuleNotFoundError: safetensors is not installed.
    """
    from safetensors.torch import save

    own = {name: tensor.detach().to("cpu", copy=True).contiguous() for name, tensor in outputs.items()}
    content = save(own)
    with new_file(path) as file:
        file.write(content)


def read_inputs(path: Path) -> dict[str, torch.Tensor]:
    """Return the tensors of a file by name, in memory of their own: a program may write into its inputs.

    Raises:
        CheckpointError: the file is not a file of tensors, or is refused.
        OSError: it cannot be opened.
    """
    file = open_checkpoint(path)
    return {name: file.tensor(name).clone() for name in file.entries}
