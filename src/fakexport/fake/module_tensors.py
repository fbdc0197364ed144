"""The tensors that a module holds, by name, and putting others in their places."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import nn

__all__ = ["Slot", "plain_tensors", "slots", "tensor_slots"]


@dataclass(frozen=True)
class Slot:
    """One place of a module that holds a parameter or a buffer.

    Args:
        path: Full name of the tensor: `model.layers.0.weight`. Empty parts as torch has them.
        owner: The module that holds it.
        name: Its name there.
        is_parameter: Whether it is registered as a parameter.
    """

    path: str
    owner: nn.Module
    name: str
    is_parameter: bool

    @property
    def tensor(self) -> torch.Tensor:
        """The tensor that is there now."""
        held = self.owner._parameters if self.is_parameter else self.owner._buffers
        tensor = held[self.name]
        assert tensor is not None
        return tensor


def slots(module: nn.Module) -> Iterator[Slot]:
    """Every slot that holds a tensor, in the order of `named_modules`; tied tensors come once per name."""
    for module_path, owner in module.named_modules(remove_duplicate=False):
        yield from tensor_slots(module_path, owner)


def tensor_slots(module_path: str, owner: nn.Module) -> Iterator[Slot]:
    """The slots of one module, without those of its children."""
    prefix = f"{module_path}." if module_path else ""
    for is_parameter, held in ((True, owner._parameters), (False, owner._buffers)):
        for name, tensor in held.items():
            if tensor is not None:
                yield Slot(prefix + name, owner, name, is_parameter)


def plain_tensors(module: nn.Module) -> Iterator[tuple[str, torch.Tensor]]:
    """Tensors that are attributes of a module without being registered, by full name."""
    for module_path, owner in module.named_modules():
        for name, value in vars(owner).items():
            if isinstance(value, torch.Tensor):
                yield (f"{module_path}.{name}" if module_path else name), value
