"""Everything in a module that a construction decides, as plain values that can be compared."""

from __future__ import annotations

import hashlib
from collections.abc import Hashable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from fakexport.emulation.fake import is_fake

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
        tensors: Parameters, buffers and other tensors in attributes (also inside lists, tuples and dicts, and
            in the modules there), by path; in the order in which the constructor set them.
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
    """Returns the state of a module. A fake tensor has no values, and equals no real one."""
    values = dict(_values(module))
    tensors = {path: value for path, value in values.items() if isinstance(value, torch.Tensor)}
    memory = {path: tensor.untyped_storage() for path, tensor in tensors.items() if not is_fake(tensor)}
    return ModuleState(
        tensors={path: _tensor_state(tensor) for path, tensor in tensors.items()},
        tied=_groups({path: id(tensor) for path, tensor in tensors.items()}),
        shared=_groups({path: storage.data_ptr() for path, storage in memory.items() if storage.nbytes()}),
        numbers={path: repr(value) for path, value in values.items() if isinstance(value, PLAIN)},
        persistent=tuple(module.state_dict(keep_vars=True)),
    )


def _values(module: nn.Module, known: frozenset[int] = frozenset()) -> Iterator[tuple[str, Any]]:
    """Every tensor and plain value, at each of its paths."""
    known |= {id(part) for part in module.modules()}
    for path, part in module.named_modules(remove_duplicate=False):
        for name, value in vars(part).items():
            is_registry = name in ("_parameters", "_buffers", "_modules")
            for place, leaf in _leaves(path if is_registry else _below(path, name), value):
                if not isinstance(leaf, nn.Module):
                    yield place, leaf
                elif id(leaf) not in known:  # It stands in a list, and nobody has registered it.
                    yield from ((_below(place, inner), value) for inner, value in _values(leaf, known))


def _leaves(path: str, value: Any) -> Iterator[tuple[str, Any]]:
    match value:
        case torch.Tensor() | nn.Module() | bool() | int() | float() | str() | None:
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
    return TensorState(
        kind=f"{type(tensor).__module__}.{type(tensor).__qualname__}",
        dtype=tensor.dtype,
        shape=tuple(tensor.shape),
        strides=tensor.stride(),
        storage_offset=int(tensor.storage_offset()),
        device=str(tensor.device),
        requires_grad=tensor.requires_grad,
        is_leaf=tensor.is_leaf,
        digest="none" if is_fake(tensor) else _digest(tensor),
    )


def _digest(tensor: torch.Tensor) -> str:
    plain = tensor.detach().resolve_conj().resolve_neg().contiguous()
    return hashlib.sha256(plain.flatten().view(torch.uint8).numpy()).hexdigest()


def _groups(keys: dict[str, Hashable]) -> set[frozenset[str]]:
    """The paths that have a key in common."""
    groups: dict[Hashable, set[str]] = {}
    for path, key in keys.items():
        groups.setdefault(key, set()).add(path)
    return {frozenset(paths) for paths in groups.values() if len(paths) > 1}
