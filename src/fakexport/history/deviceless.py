"""Which tensors were made without regard to torch's default device, so that `Module.to` places them."""

from __future__ import annotations

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
    return _is_legacy(output.operation) or _is_of_arrays(output.operation)


def _is_legacy(operation: Operation) -> bool:
    """Return whether `torch.Tensor(n)` made it: the functions of today say whether memory is to be pinned."""
    return (
        operation.operator is _empty
        and "pin_memory" not in operation.kwargs
        and operation.kwargs.get("layout") is torch.strided
    )


def _is_of_arrays(operation: Operation) -> bool:
    """Return whether it was computed of arrays of NumPy alone, and no operator named a device."""
    pending, has_arrays = [operation], False
    while pending:
        current = pending.pop()
        if current.kwargs.get("device") is not None:
            return False
        for value in leaves((current.args, current.kwargs)):
            if isinstance(value, Output):
                pending.append(value.operation)
            elif isinstance(value, Constant) and value.is_of_numpy:
                has_arrays = True
            elif isinstance(value, (Constant, Unknown)):
                return False
    return has_arrays
