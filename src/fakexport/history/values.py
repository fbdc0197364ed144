"""The values of single fake tensors, where someone knows them."""

from __future__ import annotations

import torch

from fakexport._torch.fake_tensors import FakeTensor
from fakexport._torch.real_execution import real_execution
from fakexport._torch.wrapper_subclasses import is_wrapper, rewrapped

from .edits import edit_of
from .records import TensorRecord, Unknown
from .references import made_from, record_of, set_record
from .replay import UnreplayableRead, replay


def value_of(tensor: torch.Tensor) -> torch.Tensor:
    """Return the real value of a tensor: a new CPU tensor without autograd; a real tensor comes back as it
    is.

    Args:
        tensor: A fake tensor that was made in a recorded block or given a value, on whichever device.
    Raises:
        UnreplayableRead: its history is not known, cannot run here, or misses a change of its memory.

    Example:
        >>> with fake_mode():
        ...     steps = torch.arange(3) * 2
        >>> value_of(steps)
        tensor([0, 2, 4])
    """
    if is_wrapper(tensor):
        with real_execution():
            return rewrapped(tensor, value_of)
    if not isinstance(tensor, FakeTensor):
        return tensor
    if (edit := edit_of(tensor)) is not None:
        raise UnreplayableRead(f"it was {edit}, which was not recorded")
    return replay([record_of(tensor)])[0]


def remember_value(fake: torch.Tensor, real: torch.Tensor) -> None:
    """Make `real` the value of `fake`, from now on.

    Args:
        fake: A fake tensor, such as a constant of a program on a GPU that has no value.
        real: A tensor on the CPU with its shape and dtype. It is kept, not copied.

    Example:
        >>> with fake_mode():
        ...     offset = torch.empty(2)
        >>> remember_value(offset, torch.ones(2))
        >>> value_of(offset)
        tensor([1., 1.])
    """
    set_record(fake, made_from(real))


def withhold_value(fake: torch.Tensor, reason: str) -> None:
    """Make the value of `fake` one that no one knows: `value_of` raises, with the reason.

    Args:
        fake: A fake tensor; what was known of it is forgotten.
        reason: A sentence without a capital or a period: "it was drawn without a seed".
    """
    set_record(fake, TensorRecord(Unknown(f"a constant without a value ({reason})")))


def hand_on_value(fake: torch.Tensor, other: torch.Tensor) -> None:
    """Make what is known of the value of `fake` known of `other`, a fake tensor with the same elements."""
    set_record(other, record_of(fake))
