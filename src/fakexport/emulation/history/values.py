"""Get and set the values of fake tensors, and track changes that are made outside of a recording."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from fakexport._torch.emulation.fake_tensors import FakeTensor
from fakexport._torch.emulation.wrapper_subclasses import is_wrapper, rewrapped
from fakexport._torch.operators.operator_effects import argument_at, effects_of
from fakexport._torch.operators.real_execution import real_execution

from .records import Args, Constant, Kwargs, Operation, Output, Run, TensorRecord, Unknown, leaves
from .references import (
    constant_of,
    has_other_memory,
    has_record,
    made_from,
    note_clone,
    record_of,
    set_record,
)
from .replay import DataReadError, reading_span, replay

_clone = torch.ops.aten.clone.default


def note_edit(run: Run, operator: Any, args: Args, kwargs: Kwargs) -> Any:
    """Run an operator outside of a recording, and mark the memory that it writes into as edited."""
    result = run()
    if torch.compiler.is_exporting():
        return result
    if operator is _clone and isinstance(args[0], FakeTensor):
        note_clone(args[0], result)
    effects = effects_of(operator)
    if effects.aliased is not None or effects.is_identity:
        _follow_views(args, result, effects.is_identity)
    for place in effects.writes:
        for tensor in leaves(argument_at(place, args, kwargs)):
            if isinstance(tensor, FakeTensor) and has_record(tensor):
                where = reading_span()
                at = "" if where is None else f" at {where.path}:{where.line}"
                record_of(tensor).storage.edits.append(f"changed by {operator}{at}")
    return result


def edit_of(fake: FakeTensor) -> str | None:
    """Return how a fake tensor or its memory was changed outside of the recording, or None."""
    edits = record_of(fake).storage.edits
    if edits:
        return edits[-1]
    return "assigned different data by `.data = ...`" if has_other_memory(fake) else None


def _follow_views(args: Args, result: Any, is_identity: bool) -> None:
    """Attach records to views that are created outside of a recording.

    A view shares the record of its base's memory, so that writes through the view are tracked.
    """
    source = args[0] if args else None
    if not isinstance(source, FakeTensor) or not has_record(source):
        return
    record = record_of(source)
    if not is_identity:
        record = TensorRecord(Unknown("a view that was created outside of the recording"), record.storage)
    for tensor in leaves(result):
        if isinstance(tensor, FakeTensor) and not has_record(tensor):
            set_record(tensor, record)


def constant_value(tensor: torch.Tensor) -> torch.Tensor:
    """Return the real value of a tensor as a new, detached CPU tensor; a real tensor is returned unchanged.

    Args:
        tensor: A fake tensor on any device. It was created in a recorded block, or has an assigned value.
    Raises:
        DataReadError: the tensor's history is unknown, cannot run here, or does not include a later change.

    Example:
        >>> with fake_mode():
        ...     steps = torch.arange(3) * 2
        >>> constant_value(steps)
        tensor([0, 2, 4])
    """
    if is_wrapper(tensor):
        with real_execution():
            return rewrapped(tensor, constant_value)
    if not isinstance(tensor, FakeTensor):
        return tensor
    if (edit := edit_of(tensor)) is not None:
        raise DataReadError(f"it was {edit}, which was not recorded")
    return replay([record_of(tensor)])[0]


def known_value(tensor: torch.Tensor) -> torch.Tensor | None:
    """Return `constant_value(tensor)`, or None if the value is unknown or cannot be computed here."""
    try:
        return constant_value(tensor)
    except DataReadError:
        return None


def set_constant_value(fake: torch.Tensor, real: torch.Tensor) -> None:
    """Set the value of a fake tensor to a real tensor.

    Args:
        fake: A fake tensor, such as a constant without a value in a program for a GPU.
        real: A CPU tensor of the same shape and dtype. It is referenced, not copied.

    Example:
        >>> with fake_mode():
        ...     offset = torch.empty(2)
        >>> set_constant_value(offset, torch.ones(2))
        >>> constant_value(offset)
        tensor([1., 1.])
    """
    set_record(fake, made_from(real))


_expand = torch.ops.aten.expand.default
_ZEROS = (torch.ops.aten.zeros.default, torch.ops.aten.zeros_like.default, torch.ops.aten.new_zeros.default)


def is_of_zeros(fake: torch.Tensor) -> bool:
    """Return whether the record shows that `fake` is all zeros. The value is not computed."""
    record = record_of(fake)
    made = record.output
    is_made = isinstance(made, Output) and made.operation.operator in _ZEROS
    return isinstance(fake, FakeTensor) and is_made and not record.writes() and edit_of(fake) is None


def remember_filled(fake: torch.Tensor, element: torch.Tensor) -> None:
    """Set each element of a fake tensor to one number. `constant_value` then returns an expanded view.

    Args:
        element: A 0-d CPU tensor with the dtype of `fake`. It is referenced, not copied.
    """
    operation = Operation(_expand, (constant_of(element), list(fake.shape)), {})
    set_record(fake, TensorRecord(Output(operation, 0)))


def is_filled(fake: torch.Tensor) -> bool:
    """Return whether the value of `fake` was set by `remember_filled`."""
    made = record_of(fake).output
    return isinstance(made, Output) and made.operation.operator is _expand


def withhold_value(fake: torch.Tensor, reason: str) -> None:
    """Make the value of `fake` unknown: `constant_value` raises an error with the reason.

    Args:
        reason: A sentence without a capital letter or a period: "it was drawn without a seed".
    """
    set_record(fake, TensorRecord(Unknown(f"a constant without a value ({reason})")))


def hand_on_value(fake: torch.Tensor, other: torch.Tensor) -> None:
    """Give `other` the record of `fake`, and therefore the same value. Both have the same elements."""
    set_record(other, record_of(fake))


_empty = torch.ops.aten.empty.memory_format


def ignores_default_device(tensor: torch.Tensor) -> bool:
    """Return whether the functions that created a recorded tensor ignore the default device.

    Examples: `torch.Tensor(n)`, `torch.FloatTensor(n)`, `torch.from_numpy(a)`, `torch.from_numpy(a) + 1`.
    """
    output = record_of(tensor).output
    if not isinstance(output, Output):
        return False
    return _is_legacy(output.operation) or _is_computed(output.operation, lambda data: data.is_of_numpy)


def is_of_real_data(tensor: torch.Tensor) -> bool:
    """Return whether a recorded tensor was computed from real tensors only, without `device` arguments.

    Examples: `IMAGE.clone()`, `torch.from_numpy(array).float()`.
    """
    output = record_of(tensor).output
    return isinstance(output, Output) and _is_computed(output.operation, lambda data: True)


def _is_legacy(operation: Operation) -> bool:
    """Return whether the operator call comes from `torch.Tensor(n)`, which does not pass `pin_memory`."""
    return (
        operation.operator is _empty
        and "pin_memory" not in operation.kwargs
        and operation.kwargs.get("layout") is torch.strided
    )


def _is_computed(operation: Operation, is_source: Callable[[Constant], bool]) -> bool:
    """Return whether a result depends only on constants for which `is_source` is true.

    Also return False if an operator has a `device` argument.
    """
    pending, has_source = [operation], False
    while pending:
        current = pending.pop()
        if current.kwargs.get("device") is not None:
            return False
        for value in leaves((current.args, current.kwargs)):
            if isinstance(value, Output):
                pending.append(value.operation)
            elif isinstance(value, Constant) and is_source(value):
                has_source = True
            elif isinstance(value, (Constant, Unknown)):
                return False
    return has_source
