"""The values of single fake tensors, and what happens to them while no one records."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from fakexport._torch.fake_tensors import FakeTensor
from fakexport._torch.operator_effects import effects_of
from fakexport._torch.real_execution import real_execution
from fakexport._torch.wrapper_subclasses import is_wrapper, rewrapped

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
from .replay import UnreplayableRead, reading_span, replay

_clone = torch.ops.aten.clone.default


def note_edit(run: Run, operator: Any, args: Args, kwargs: Kwargs) -> Any:
    """Observer of a mode outside of its recording: marks the memory that an operator writes into."""
    result = run()
    if torch.compiler.is_exporting():
        return result
    if operator is _clone and isinstance(args[0], FakeTensor):
        note_clone(args[0], result)
    effects = effects_of(operator)
    if effects.aliased is not None or effects.is_identity:
        _follow_views(args, result, effects.is_identity)
    for index, name in effects.writes:
        for tensor in leaves(args[index] if index < len(args) else kwargs.get(name)):
            if isinstance(tensor, FakeTensor) and has_record(tensor):
                where = reading_span()
                at = "" if where is None else f" at {where.path}:{where.line}"
                record_of(tensor).storage.edits.append(f"changed by {operator}{at}")
    return result


def edit_of(fake: FakeTensor) -> str | None:
    """Return what was done to a fake tensor or its memory outside of the recording, or None."""
    edits = record_of(fake).storage.edits
    if edits:
        return edits[-1]
    return "given different data by `.data = ...`" if has_other_memory(fake) else None


def _follow_views(args: Args, result: Any, is_identity: bool) -> None:
    """Let views made outside share the record of the memory, so that a write through them is seen."""
    source = args[0] if args else None
    if not isinstance(source, FakeTensor) or not has_record(source):
        return
    record = record_of(source)
    if not is_identity:
        record = TensorRecord(Unknown("a view that was created outside of the recording"), record.storage)
    for tensor in leaves(result):
        if isinstance(tensor, FakeTensor) and not has_record(tensor):
            set_record(tensor, record)


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


def known_value(tensor: torch.Tensor) -> torch.Tensor | None:
    """Return the value as `value_of` does; None if it is not known, or cannot be computed here."""
    try:
        return value_of(tensor)
    except UnreplayableRead:
        return None


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


_empty = torch.ops.aten.empty.memory_format


def ignores_default_device(tensor: torch.Tensor) -> bool:
    """Return whether what made a recorded tensor knows no device: `torch.Tensor(n)`, `torch.FloatTensor(n)`,
    and `torch.from_numpy(array)` with what was computed of it.
    """
    output = record_of(tensor).output
    if not isinstance(output, Output):
        return False
    return _is_legacy(output.operation) or _is_computed(output.operation, lambda data: data.is_of_numpy)


def is_of_real_data(tensor: torch.Tensor) -> bool:
    """Return whether a recorded tensor was computed from real tensors and arrays alone, and no operator named
    a device: `IMAGE.clone()`, `torch.from_numpy(array).float()`.
    """
    output = record_of(tensor).output
    return isinstance(output, Output) and _is_computed(output.operation, lambda data: True)


def _is_legacy(operation: Operation) -> bool:
    """Return whether `torch.Tensor(n)` made it: the functions of today say whether memory is to be pinned."""
    return (
        operation.operator is _empty
        and "pin_memory" not in operation.kwargs
        and operation.kwargs.get("layout") is torch.strided
    )


def _is_computed(operation: Operation, is_source: Callable[[Constant], bool]) -> bool:
    """Return whether it was computed from sources alone, at least one, and no operator named a device."""
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
