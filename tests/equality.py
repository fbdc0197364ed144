"""Bit-for-bit comparison of tensors and modules."""

from __future__ import annotations

import torch
from torch import nn

from fakexport.emulation.fake.module_tensors import held_tensors

__all__ = ["assert_same_module", "assert_same_tensor"]


def assert_same_tensor(one: torch.Tensor, other: torch.Tensor, name: str = "tensor") -> None:
    """Same class, dtype, device, shape, strides, autograd flags and bits."""
    facts = [
        (type(t), t.dtype, t.device, t.shape, t.stride(), t.storage_offset(), t.requires_grad and t.is_leaf)
        for t in (one, other)
    ]
    assert facts[0] == facts[1], f"{name}: {facts[0]} and {facts[1]}"
    bits = [t.detach().contiguous().view(-1).view(torch.uint8) for t in (one, other)]
    assert torch.equal(*bits), (
        f"{name} differs in {int((bits[0] != bits[1]).sum())} of {bits[0].numel()} bytes"
    )


def assert_same_module(one: nn.Module, other: nn.Module) -> None:
    """Same tensors at the same places, and the same of them share memory."""
    held = [list(held_tensors(module)) for module in (one, other)]
    paths = [[h.path for h in places] for places in held]
    assert paths[0] == paths[1]
    for mine, theirs in zip(*held, strict=True):
        assert_same_tensor(mine.tensor, theirs.tensor, mine.path)
    memory = [[h.tensor.untyped_storage().data_ptr() for h in places] for places in held]
    groups = [[places.index(p) if p else -1 for p in places] for places in memory]
    assert groups[0] == groups[1], "other tensors share memory"
