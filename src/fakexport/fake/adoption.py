"""Turning a module with real, meta or foreign fake tensors into one with fakes of a given mode."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any

import torch
from torch import nn

from fakexport._torch.fake_tensors import (
    FakeTensor,
    FakeTensorMode,
    is_fake_of,
    is_fake_tensor,
    own_attributes,
    real_to_fake,
)
from fakexport._torch.parameter_classes import fake_parameter, own_class
from fakexport._torch.real_execution import real_execution
from fakexport._torch.wrapper_subclasses import held_bytes, is_wrapper
from fakexport.error import InvalidType, first_line
from fakexport.history import Recording, edit_of, remember_value, withhold_value

from .module_tensors import held_tensors, plain_tensors, slots
from .subclasses import changed_inside, check_class

LARGE_REAL_BYTES = 2**20
"""A real parameter above this size is reported, as the model was not built without data, and not kept."""


def foreign_tensors(module: nn.Module, mode: FakeTensorMode) -> dict[str, torch.Tensor]:
    """Return the parameters, buffers and plain tensor attributes that are not fakes of this mode, by name."""
    return {name: t for name, t in _tensors(module) if not is_fake_of(t, mode) or t.device.type == "meta"}


def adopt(module: nn.Module, recording: Recording, device: torch.device | None) -> nn.Module:
    """Return a copy of the module whose tensors are fakes of the recording's mode; the module stays as it is.

    No data is copied. The value of a real tensor is remembered by reference (but for large parameters),
    what is known of a fake one is taken over; ties, classes and attributes of tensors are kept.

    Args:
        device: Where tensors without a device of their own (`meta`) go; default the CPU.
    Raises:
        TypeError: the module cannot be copied.
        SubclassNotKept: a tensor has a class that would be lost.
    """
    adopted = _Adopted(recording, device)
    # Fakes in lists and dicts as well: they belong to their mode, and real ones are copied with the module.
    contained = ((held.path, held.tensor) for held in held_tensors(module) if is_fake_tensor(held.tensor))
    for name, tensor in (*_tensors(module), *contained):
        adopted.take(name, tensor)
    try:
        with real_execution():
            return copy.deepcopy(module, adopted.by_id)
    except Exception as error:
        raise InvalidType(
            f"a module built outside of the factory has to be copied, and {type(module).__name__} cannot "
            f"be: {first_line(error)}; pass a function that builds it"
        ) from error


def _tensors(module: nn.Module) -> Iterator[tuple[str, torch.Tensor]]:
    yield from ((slot.path, slot.tensor) for slot in slots(module))
    yield from plain_tensors(module)


class _Adopted:
    """The fakes that stand for tensors, by the identity of those: what `copy.deepcopy` takes as its memo."""

    def __init__(self, recording: Recording, device: torch.device | None) -> None:
        self.by_id: dict[int, Any] = {}
        self._kept: list[torch.Tensor] = []
        self._recording = recording
        self._device = device

    def take(self, name: str, tensor: torch.Tensor, *, is_weight: bool = False) -> torch.Tensor:
        """Return the fake of a tensor; of a wrapper, the wrapper of the fakes of what is inside."""
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
                self._recording.take_over(fake, tensor)
            else:
                withhold_value(fake, f"it was {edit}, which was not recorded")
        elif not is_meta and not (is_weight and held_bytes(tensor) > LARGE_REAL_BYTES):
            with real_execution():  # A paused recording would let the mode answer with a fake.
                remember_value(fake, tensor.detach())
        return fake

    def _described(self, name: str, tensor: torch.Tensor, device: torch.device) -> torch.Tensor:
        """Return a fake tensor with the sizes, the class and the attributes of a tensor, and no value."""
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
