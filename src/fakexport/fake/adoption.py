"""Turning a module with real, meta or foreign fake tensors into one with fakes of a given mode."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any

import torch
from torch import nn

from fakexport._torch.fake_tensors import FakeTensor, FakeTensorMode, is_fake_of, real_to_fake
from fakexport._torch.real_execution import real_execution

from .edits import edit_of
from .module_tensors import held_tensors, plain_tensors, slots
from .recording import Recording
from .values import remember_value, withhold_value

__all__ = ["LARGE_REAL_BYTES", "adopt", "foreign_tensors"]

LARGE_REAL_BYTES = 2**20
"""A real parameter above this size is reported, as the model was not built without data, and not kept."""


def foreign_tensors(module: nn.Module, mode: FakeTensorMode) -> dict[str, torch.Tensor]:
    """The parameters, buffers and plain tensor attributes that are no fakes of this mode, by name."""
    return {name: t for name, t in _tensors(module) if not is_fake_of(t, mode) or t.device.type == "meta"}


def adopt(module: nn.Module, recording: Recording, device: torch.device | None) -> nn.Module:
    """A copy of the module whose tensors are fakes of the recording's mode; the module stays as it is.

    No data is copied. The value of a real tensor is remembered by reference (but for large parameters),
    what is known of a fake one is taken over, ties are kept.

    Args:
        module: A module with tensors of any kind.
        recording: The open recording of the mode.
        device: Where tensors without a device of their own (`meta`) go; default the CPU.
    Raises:
        TypeError: the module cannot be copied.
    """
    replaced: dict[int, Any] = {}
    kept: list[torch.Tensor] = []
    # Fakes in lists and dicts as well: they belong to their mode, and real ones are copied with the module.
    contained = (held.tensor for held in held_tensors(module) if isinstance(held.tensor, FakeTensor))
    for tensor in (*(tensor for _, tensor in _tensors(module)), *contained):
        if id(tensor) not in replaced:
            replaced[id(tensor)] = _fake_of(tensor, recording, device)
            kept.append(tensor)
    try:
        with real_execution():
            return copy.deepcopy(module, replaced)
    except Exception as error:
        text = str(error).partition("\n")[0]
        raise TypeError(
            f"a module made outside of the build has to be copied, and {type(module).__name__} cannot be: "
            f"{text}; pass a function that makes it"
        ) from error


def _tensors(module: nn.Module) -> Iterator[tuple[str, torch.Tensor]]:
    yield from ((slot.path, slot.tensor) for slot in slots(module))
    yield from plain_tensors(module)


def _fake_of(tensor: torch.Tensor, recording: Recording, device: torch.device | None) -> torch.Tensor:
    is_meta = tensor.device.type == "meta"
    if is_fake_of(tensor, recording.mode) and not is_meta:
        return tensor
    place = (device or torch.device("cpu")) if is_meta else tensor.device
    with recording.paused():
        fake: torch.Tensor = real_to_fake(recording.mode, tensor, place)
        if isinstance(tensor, nn.Parameter):
            fake = nn.Parameter(fake, requires_grad=tensor.requires_grad)
        else:
            fake.requires_grad_(tensor.requires_grad and tensor.is_leaf)
    if isinstance(tensor, FakeTensor):
        if (edit := edit_of(tensor)) is None:
            recording.take_over(fake, tensor)
        else:
            withhold_value(fake, f"it was {edit}, which nobody recorded")
    elif not is_meta and not (isinstance(tensor, nn.Parameter) and tensor.nbytes > LARGE_REAL_BYTES):
        remember_value(fake, tensor.detach())
    return fake
