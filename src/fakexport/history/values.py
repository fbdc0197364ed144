"""The values of single fake tensors, where someone knows them."""

from __future__ import annotations

import torch

from fakexport._torch.fake_tensors import FakeTensor
from fakexport._torch.real_execution import real_execution
from fakexport._torch.wrapper_subclasses import is_wrapper, rewrapped

from .edits import edit_of
from .records import Operation, Output, TensorRecord, Unknown
from .references import constant_of, made_from, record_of, set_record
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


_expand = torch.ops.aten.expand.default
_ZEROS = (torch.ops.aten.zeros.default, torch.ops.aten.zeros_like.default, torch.ops.aten.new_zeros.default)


def is_of_zeros(fake: torch.Tensor) -> bool:
    """Return whether `fake` is recorded as zeros and nothing has written into it, without computing it."""
    record = record_of(fake)
    made = record.output
    is_made = isinstance(made, Output) and made.operation.operator in _ZEROS
    return isinstance(fake, FakeTensor) and is_made and not record.writes() and edit_of(fake) is None


def remember_filled(fake: torch.Tensor, element: torch.Tensor) -> None:
    """Make one number the value of all elements of `fake`, which takes no memory: `value_of` returns a view.

    Args:
        fake: A fake tensor.
        element: A 0-d tensor on the CPU with its dtype. It is kept, not copied.
    """
    operation = Operation(_expand, (constant_of(element), list(fake.shape)), {})
    set_record(fake, TensorRecord(Output(operation, 0)))


def is_filled(fake: torch.Tensor) -> bool:
    """Return whether the value of `fake` is what `remember_filled` said."""
    made = record_of(fake).output
    return isinstance(made, Output) and made.operation.operator is _expand


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
