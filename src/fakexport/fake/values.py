"""The values of single fake tensors, where somebody knows them."""

from __future__ import annotations

import torch

from fakexport._torch.fake_tensors import FakeTensor

from .references import made_from, record_of, set_record
from .replay import replay

__all__ = ["remember_value", "value_of"]


def value_of(tensor: torch.Tensor) -> torch.Tensor:
    """The real value of a tensor: a new CPU tensor without autograd; a real tensor comes back as it is.

    Args:
        tensor: A fake tensor that was made in a recorded block or given a value, on whichever device.
    Raises:
        UnreplayableRead: its history is not known, or cannot run here.
    """
    return replay([record_of(tensor)])[0] if isinstance(tensor, FakeTensor) else tensor


def remember_value(fake: torch.Tensor, real: torch.Tensor) -> None:
    """Makes `real` the value of `fake`, from now on. It is kept, not copied."""
    set_record(fake, made_from(real))
