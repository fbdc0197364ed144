"""Compute how many elements a mask selects. Only the values of the mask are computed."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch

from fakexport._torch.emulation.fake_tensors import FakeTensor, FakeTensorMode, real_to_fake
from fakexport._torch.operators.real_execution import real_execution

_index = torch.ops.aten.index.Tensor
_masked_select = torch.ops.aten.masked_select.default
_MASKS = (torch.bool, torch.uint8)


def has_mask(operator: Any, args: Sequence[Any]) -> bool:
    """Return whether the shape of an operator's result depends on the values of a boolean mask."""
    return operator is _masked_select or (
        operator is _index
        and any(isinstance(index, torch.Tensor) and index.dtype in _MASKS for index in args[1])
    )


def selected(
    mode: FakeTensorMode,
    operator: Any,
    args: Sequence[Any],
    constant_value: Callable[[torch.Tensor], torch.Tensor],
) -> torch.Tensor:
    """Return the elements that a mask selects, as a fake tensor.

    The values of the masked tensor are not computed: it may be the output of a whole encoder on a GPU.
    """
    source, masks = args
    if operator is _masked_select:
        mask = constant_value(masks)
        with real_execution():
            # Broadcasting repeats each element of the mask equally often.
            repeats = math.prod(torch.broadcast_shapes(source.shape, mask.shape)) // max(mask.numel(), 1)
            count = int(mask.count_nonzero()) * repeats
        # torch's kernel always returns contiguous memory.
        empty: torch.Tensor = source.new_empty((count,))
        return empty

    def places(index: torch.Tensor) -> list[torch.Tensor]:
        mask = constant_value(index)
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
