"""Determine whether names refer to the same tensor."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from typing import Any

import torch
from torch.export import ExportedProgram
from torch.multiprocessing.reductions import StorageWeakRef

from fakexport._torch.emulation.wrapper_subclasses import inner_tensors, is_wrapper


def tensor_identity(tensor: torch.Tensor) -> Hashable:
    """Return a key that is equal for tied tensors: the same object, or equal views of the same memory.

    This also works for fake tensors, which have storages without data. Tensors that overlap only partly have
    different keys. Placeholder tensors with stride 0 also have different keys, because they only share memory
    to save space. The key is valid as long as the tensor exists.
    """
    if is_wrapper(tensor):  # A wrapper has no memory of its own.
        return tuple(tensor_identity(inner) for _, inner in inner_tensors(tensor))
    if tensor.layout is not torch.strided or 0 in tensor.stride() or tensor.numel() == 0:
        return id(tensor)
    return (
        StorageWeakRef(tensor.untyped_storage()),
        tensor.dtype,
        tensor.is_conj(),
        tensor.is_neg(),
        tensor.storage_offset(),
        tuple(tensor.shape),
        tensor.stride(),
    )


def names_by_tensor(tensors: Mapping[str, torch.Tensor]) -> list[list[str]]:
    """Group names by tensor. Groups are in the order of their first names."""
    names: dict[Hashable, list[str]] = {}
    for name, tensor in tensors.items():
        names.setdefault(tensor_identity(tensor), []).append(name)
    return list(names.values())


def constants_read(program: ExportedProgram) -> dict[str, Any]:
    """Return the constants that a program reads. torch lists all names of a tensor, but reads only one."""
    read = {spec.target for spec in program.graph_signature.input_specs}
    return {name: constant for name, constant in program.constants.items() if name in read}
