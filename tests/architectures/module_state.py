"""Everything in a module that a construction decides, as plain values that can be compared."""

from __future__ import annotations

import hashlib
from collections.abc import Hashable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

__all__ = ["ModuleState", "TensorState", "module_state"]

PLAIN = (bool, int, float, str, type(None))


@dataclass(frozen=True)
class TensorState:
    """One tensor. Of its values, the bytes are compared: a NaN equals itself, and 0.0 is not -0.0."""

    kind: str
    dtype: torch.dtype
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    storage_offset: int
    device: str
    requires_grad: bool
    is_leaf: bool
    digest: str


@dataclass(frozen=True)
class ModuleState:
    """What a module holds.

    Args:
        tensors: Parameters, buffers and other tensors in attributes (also inside lists, tuples and dicts),
            by path; in the order in which the constructor set them.
        tied: The paths that are one tensor.
        shared: The paths that have one storage.
        numbers: Attributes that are plain values, by path: some are read out of tensors.
        persistent: The keys of the state dict.
    """

    tensors: dict[str, TensorState]
    tied: set[frozenset[str]]
    shared: set[frozenset[str]]
    numbers: dict[str, str]
    persistent: tuple[str, ...]


def module_state(module: nn.Module) -> ModuleState:
    """Returns the state of a real module."""
    values = dict(_values(module))
    tensors = {path: value for path, value in values.items() if isinstance(value, torch.Tensor)}
    memory = {path: tensor.untyped_storage() for path, tensor in tensors.items()}
    return ModuleState(
        tensors={path: _tensor_state(tensor) for path, tensor in tensors.items()},
        tied=_groups({path: id(tensor) for path, tensor in tensors.items()}),
        shared=_groups({path: storage.data_ptr() for path, storage in memory.items() if storage.nbytes()}),
        numbers={path: repr(value) for path, value in values.items() if isinstance(value, PLAIN)},
        persistent=tuple(module.state_dict(keep_vars=True)),
    )


def _values(module: nn.Module) -> Iterator[tuple[str, Any]]:
    """Every tensor and plain value, at each of its paths."""
    for path, part in module.named_modules(remove_duplicate=False):
        for name, value in vars(part).items():
            if name in ("_parameters", "_buffers"):
                yield from _leaves(path, value)
            elif name != "_modules":
                yield from _leaves(_below(path, name), value)


def _leaves(path: str, value: Any) -> Iterator[tuple[str, Any]]:
    match value:
        case torch.Tensor() | bool() | int() | float() | str() | None:
            yield path, value
        case dict():
            for key, item in value.items():
                yield from _leaves(_below(path, key), item)
        case list() | tuple():
            for index, item in enumerate(value):
                yield from _leaves(f"{path}[{index}]", item)


def _below(path: str, name: object) -> str:
    return f"{path}.{name}" if path else str(name)


def _tensor_state(tensor: torch.Tensor) -> TensorState:
    plain = tensor.detach().resolve_conj().resolve_neg().contiguous()
    return TensorState(
        kind=f"{type(tensor).__module__}.{type(tensor).__qualname__}",
        dtype=tensor.dtype,
        shape=tuple(tensor.shape),
        strides=tensor.stride(),
        storage_offset=int(tensor.storage_offset()),
        device=str(tensor.device),
        requires_grad=tensor.requires_grad,
        is_leaf=tensor.is_leaf,
        digest=hashlib.sha256(plain.flatten().view(torch.uint8).numpy()).hexdigest(),
    )


def _groups(keys: dict[str, Hashable]) -> set[frozenset[str]]:
    """The paths that have a key in common."""
    groups: dict[Hashable, set[str]] = {}
    for path, key in keys.items():
        groups.setdefault(key, set()).add(path)
    return {frozenset(paths) for paths in groups.values() if len(paths) > 1}
