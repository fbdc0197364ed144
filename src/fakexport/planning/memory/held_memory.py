"""Find the storages that exist during the whole run: weights, constants, and inputs owned by the caller."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch.export import ExportedProgram
from torch.export.graph_signature import InputKind

from fakexport._torch.costs.operator_memory import tensors_in
from fakexport._torch.emulation.fake_tensors import memory_of, storage_identity
from fakexport._torch.emulation.wrapper_subclasses import inner_tensors
from fakexport.exporting.program import input_nodes, plain_name, tensor_identity, written_state
from fakexport.planning.memory.storage import Kind, Size, Storage

_WEIGHTS = (InputKind.PARAMETER, InputKind.BUFFER)


def held_weights(program: ExportedProgram) -> tuple[list[Storage], dict[str, int]]:
    """Return the storages of weights and constants, which may be shared, and each name's first index."""
    weights = {spec.target for spec in program.graph_signature.input_specs if spec.kind in _WEIGHTS}
    weights |= program.state_dict.keys()
    written = written_state(program)
    storages: list[Storage] = []
    places: dict[str, int] = {}
    for members in _by_memory({**program.constants, **program.state_dict}):
        names = tuple(dict.fromkeys(name for name, _ in members))
        for name in names:
            places.setdefault(name, len(storages))
        kind: Kind = "weight" if not weights.isdisjoint(names) else "constant"
        kind = "state" if not written.isdisjoint(names) else kind
        first = members[0][1]
        storages.append(
            Storage(
                name=names[0],
                kind=kind,
                device=str(first.device),
                bytes=_bytes([tensor for _, tensor in members]),
                shape=tuple(first.shape),
                dtype=plain_name(first.dtype),
                names=names,
            )
        )
    return storages, places


def held_inputs(program: ExportedProgram, size: Callable[[Any], Size]) -> list[tuple[str, list[Storage]]]:
    """Return the name of each user input with the storages of its tensors."""
    return [
        (node.name, [_input(node.name, tensor, size) for tensor in tensors_in(node.meta.get("val"))])
        for spec, node in input_nodes(program)
        if spec.kind is InputKind.USER_INPUT
    ]


def _input(name: str, tensor: torch.Tensor, size: Callable[[Any], Size]) -> Storage:
    return Storage(
        name=name,
        kind="input",
        device=str(tensor.device),
        bytes=size(tensor.numel() * tensor.itemsize),
        shape=tuple(map(size, tensor.shape)),
        dtype=plain_name(tensor.dtype),
        names=(name,),
    )


def _by_memory(held: Mapping[str, Any]) -> list[list[tuple[str, torch.Tensor]]]:
    found: dict[int, list[tuple[str, torch.Tensor]]] = {}
    for name, value in held.items():
        if isinstance(value, torch.Tensor):
            for _, tensor in inner_tensors(value):
                key = id(tensor) if memory_of(tensor) is None else storage_identity(tensor)
                found.setdefault(key, []).append((name, tensor))
    return list(found.values())


def _bytes(tensors: list[torch.Tensor]) -> int:
    """Return the total bytes of the distinct views of one storage, limited to the size of that storage."""
    views = {tensor_identity(tensor): tensor.numel() * tensor.itemsize for tensor in tensors}
    memory = memory_of(tensors[0])
    return sum(views.values()) if memory is None else min(sum(views.values()), memory.nbytes())
