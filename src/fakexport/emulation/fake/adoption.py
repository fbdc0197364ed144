"""Convert a module with real, meta or foreign fake tensors to a module with fake tensors of a given mode."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any

import torch
from torch import nn

from fakexport._torch.emulation.fake_tensors import (
    FakeTensor,
    FakeTensorMode,
    is_fake_of,
    is_fake_tensor,
    own_attributes,
    real_to_fake,
)
from fakexport._torch.emulation.parameter_classes import fake_parameter, own_class
from fakexport._torch.emulation.wrapper_subclasses import held_bytes, is_wrapper
from fakexport._torch.operators.real_execution import real_execution
from fakexport.emulation.history import Recording, edit_of, hand_on_value, set_constant_value, withhold_value
from fakexport.error import InvalidType, first_line

from .module_tensors import Inventory
from .subclasses import changed_inside, check_class

LARGE_REAL_BYTES = 2**20
"""If a real parameter is larger than this, its value is dropped, and a note reports its size."""


def foreign_tensors(inventory: Inventory, mode: FakeTensorMode) -> dict[str, torch.Tensor]:
    """Return, by name, the real tensors, the tensors on `meta`, and the fake tensors of a different mode."""
    return {name: t for name, t in _tensors(inventory) if not is_fake_of(t, mode) or t.device.type == "meta"}


def adopt(inventory: Inventory, recording: Recording, device: torch.device | None) -> nn.Module:
    """Return a copy of the module with fake tensors of the recording's mode; the module is not modified.

    No data is copied. The values of real tensors are referenced (except those of large parameters), and fake
    tensors keep their records. Tied tensors stay tied, and tensors keep their classes and attributes.

    Args:
        device: Device for `meta` tensors. Default: the CPU.
    Raises:
        TypeError: the module cannot be copied.
        UnsupportedSubclassError: a tensor has an unsupported class, which the copy would lose.
    """
    adopted = _Adopted(recording, device)
    # Fake tensors in lists and dicts must be converted, too, because they belong to a different mode. Real
    # tensors in lists and dicts are copied with the module.
    contained = ((held.path, held.tensor) for held in inventory.held if is_fake_tensor(held.tensor))
    for name, tensor in (*_tensors(inventory), *contained):
        adopted.take(name, tensor)
    try:
        with real_execution():
            return copy.deepcopy(inventory.module, adopted.by_id)
    except Exception as error:
        raise InvalidType(
            "a module that was built outside of the factory must be copied, but copying "
            f"{type(inventory.module).__name__} failed: {first_line(error)}; pass a function that builds the "
            "module"
        ) from error


def _tensors(inventory: Inventory) -> Iterator[tuple[str, torch.Tensor]]:
    yield from ((slot.path, slot.tensor) for slot in inventory.slots)
    yield from inventory.plain_tensors()


class _Adopted:
    """A map from the id of each original tensor to its fake version, used as the memo of `copy.deepcopy`."""

    def __init__(self, recording: Recording, device: torch.device | None) -> None:
        self.by_id: dict[int, Any] = {}
        self._kept: list[torch.Tensor] = []
        self._recording = recording
        self._device = device

    def take(self, name: str, tensor: torch.Tensor, *, is_weight: bool = False) -> torch.Tensor:
        """Return the fake version of a tensor. For a wrapper subclass, convert its inner tensors."""
        if id(tensor) not in self.by_id:
            check_class(name, tensor)
            self._kept.append(tensor)
            is_weight = is_weight or isinstance(tensor, nn.Parameter)
            self.by_id[id(tensor)] = self._fake_of(name, tensor, is_weight)
        fake: torch.Tensor = self.by_id[id(tensor)]
        return fake

    def _fake_of(self, name: str, tensor: torch.Tensor, is_weight: bool) -> torch.Tensor:
        if is_wrapper(tensor):
            with self._recording.paused():
                return changed_inside(name, tensor, lambda t: self.take(name, t, is_weight=is_weight))
        is_meta = tensor.device.type == "meta"
        if is_fake_of(tensor, self._recording.mode) and not is_meta:
            return tensor
        fake = self._described(name, tensor, (self._device or _CPU) if is_meta else tensor.device)
        if isinstance(tensor, FakeTensor):
            if (edit := edit_of(tensor)) is None:
                hand_on_value(tensor, fake)
            else:
                withhold_value(fake, f"it was {edit}, which was not recorded")
        elif not is_meta and not (is_weight and held_bytes(tensor) > LARGE_REAL_BYTES):
            with real_execution():  # Under the mode, `detach` could return a fake tensor.
                set_constant_value(fake, tensor.detach())
        return fake

    def _described(self, name: str, tensor: torch.Tensor, device: torch.device) -> torch.Tensor:
        """Return a fake tensor with a tensor's shape, class and attributes, but without its value."""
        with self._recording.paused():
            fake: torch.Tensor = real_to_fake(self._recording.mode, tensor, device)
            if isinstance(tensor, nn.Parameter):
                cls = own_class(tensor) if isinstance(tensor, FakeTensor) else type(tensor)
                fake = fake_parameter(cls, fake, tensor.requires_grad)
            else:
                fake.requires_grad_(tensor.requires_grad and tensor.is_leaf)
        own = own_attributes(tensor) if isinstance(tensor, FakeTensor) else vars(tensor)
        for key in own.keys() - vars(fake).keys():
            value = own[key]
            vars(fake)[key] = self.take(f"{name}.{key}", value) if isinstance(value, torch.Tensor) else value
        return fake


_CPU = torch.device("cpu")
