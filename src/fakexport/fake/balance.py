"""Contiguous blocks of a model over the devices of a topology, in proportion to their memory.

In the spirit of accelerate's `infer_auto_device_map`, which asks the real devices for their free memory
and needs a package of its own; this needs neither. A module that ends up between two devices costs a
transfer per run, so a repeated block stays whole.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import nn

from fakexport._torch.wrapper_subclasses import held_bytes
from fakexport.devices import Topology

from .module_tensors import slots, tensor_slots

_LISTS = (nn.ModuleList, nn.Sequential, nn.ModuleDict)


@dataclass(frozen=True)
class _Unit:
    """A part of the model that stays on one device."""

    path: str
    parameter_ids: frozenset[int]
    bytes_: int


def balanced_map(module: nn.Module, topology: Topology | None) -> dict[str, str]:
    """Return the device by module path: blocks in the order of the model, in shares of the devices' memory.

    Modules without parameters (rotary embeddings) are on the first device. Modules that share a parameter are
    together, where the first of them is: an operator takes its weights from one device. The host is used only
    where it is the only device.
    """
    devices = [(d.name, d.profile.memory_bytes or 1) for d in topology.accelerators] if topology else []
    if len(devices) < 2:
        return {"": devices[0][0] if devices else "cpu"}
    units = list(_units(module, len(devices)))
    groups = _tied(units)
    group_bytes = Counter[int]()
    for unit, group in zip(units, groups, strict=True):
        group_bytes[group] += unit.bytes_
    bounds = _upper_bounds([memory for _, memory in devices], group_bytes.total())
    device_of: dict[int, str] = {}
    start = 0.0
    for group, size in group_bytes.items():
        middle = start + size / 2
        place = next((i for i, bound in enumerate(bounds) if middle < bound), len(devices) - 1)
        device_of[group] = devices[place if units[group].parameter_ids else 0][0]
        start += size
    return {unit.path: device_of[group] for unit, group in zip(units, groups, strict=True)}


def _tied(units: Sequence[_Unit]) -> list[int]:
    """Return for each unit the first one that it shares a parameter with, directly or over others."""
    groups = list(range(len(units)))
    owners: dict[int, int] = {}
    for index, unit in enumerate(units):
        joined = {index, *(groups[owners.setdefault(key, index)] for key in unit.parameter_ids)}
        if len(joined) > 1:
            first = min(joined)
            groups = [first if group in joined else group for group in groups]
    return groups


def _upper_bounds(memories: list[int], total: int) -> list[float]:
    bounds, passed = [], 0
    for memory in memories:
        passed += memory
        bounds.append(total * passed / sum(memories))
    return bounds


def _units(module: nn.Module, device_count: int) -> Iterator[_Unit]:
    whole = {name for m in module.modules() for name in getattr(m, "_no_split_modules", None) or ()}
    counted: set[int] = set()
    share = _bytes(module) / device_count

    def visit(path: str, part: nn.Module, is_block: bool) -> Iterator[_Unit]:
        is_split = _is_split(part, is_block, whole, share)
        held = list(tensor_slots("", part) if is_split else slots(part))
        if held:
            yield unit(path, [slot.tensor for slot in held if slot.is_parameter])
        if not is_split:
            return
        makes_blocks = isinstance(part, _LISTS) and sum(_bytes(child) > 0 for child in part.children()) > 1
        for name, child in part.named_children():
            yield from visit(f"{path}.{name}" if path else name, child, is_block or makes_blocks)

    def unit(path: str, tensors: list[torch.Tensor]) -> _Unit:
        fresh = {id(t): t for t in tensors if id(t) not in counted}
        counted.update(fresh)
        return _Unit(path, frozenset(map(id, tensors)), sum(map(held_bytes, fresh.values())))

    yield from visit("", module, is_block=False)


def _is_split(part: nn.Module, is_block: bool, whole: set[str], share: float) -> bool:
    """Return whether the children of a module may be on different devices."""
    if type(part).__name__ in whole or not any(_bytes(child) for child in part.children()):
        return False
    if _bytes(part) > share:
        return True
    return not is_block and any(isinstance(m, _LISTS) and len(m) > 1 for m in part.modules())


def _bytes(part: nn.Module) -> int:
    tensors = {id(slot.tensor): slot.tensor for slot in slots(part) if slot.is_parameter}
    return sum(map(held_bytes, tensors.values()))
