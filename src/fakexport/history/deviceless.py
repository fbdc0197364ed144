"""Which tensors were made without regard to torch's default device, so that `Module.to` places them."""

from __future__ import annotations

from collections.abc import Callable

import torch

from .records import Constant, Operation, Output, Unknown, leaves
from .references import record_of

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
