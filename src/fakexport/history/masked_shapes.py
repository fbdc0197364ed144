"""How much a mask selects: its values tell, those of the tensor that it selects from do not."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch

from fakexport._torch.fake_tensors import FakeTensor, FakeTensorMode, real_to_fake
from fakexport._torch.real_execution import real_execution

_index = torch.ops.aten.index.Tensor
_masked_select = torch.ops.aten.masked_select.default
_MASKS = (torch.bool, torch.uint8)


def has_mask(operator: Any, args: Sequence[Any]) -> bool:
    """Return whether a boolean mask selects, so that the shape of the result depends on its values."""
    return operator is _masked_select or (
        operator is _index
        and any(isinstance(index, torch.Tensor) and index.dtype in _MASKS for index in args[1])
    )


def selected(
    mode: FakeTensorMode, operator: Any, args: Sequence[Any], value_of: Callable[[torch.Tensor], torch.Tensor]
) -> torch.Tensor:
    """Return what a mask selects, as a fake tensor.

    The tensor that it selects from may be the output of a whole encoder, with kernels that only a GPU has.

    Args:
        mode: The mode of the fake tensors. It must not record here.
        operator: `aten.index.Tensor` or `aten.masked_select`.
        args: Its arguments, for which `has_mask` is true.
        value_of: Returns the real values of a mask, on the CPU.
    """
    source, masks = args
    if operator is _masked_select:
        mask = value_of(masks)
        with real_execution():
            # Broadcasting repeats each element of the mask equally often.
            repeats = math.prod(torch.broadcast_shapes(source.shape, mask.shape)) // max(mask.numel(), 1)
            count = int(mask.count_nonzero()) * repeats
        # torch's own kernel returns contiguous memory, whatever it selects from.
        empty: torch.Tensor = source.new_empty((count,))
        return empty

    def places(index: torch.Tensor) -> list[torch.Tensor]:
        mask = value_of(index)
        with real_execution():
            found = mask.nonzero().unbind(1)
        return [real_to_fake(mode, place, index.device) for place in found]

    indices: list[Any] = []
    for index in masks:
        is_mask = isinstance(index, torch.Tensor) and index.dtype in _MASKS
        indices += places(index) if is_mask else [index]
    result = operator(source, indices)
    assert isinstance(result, FakeTensor)
    return result
