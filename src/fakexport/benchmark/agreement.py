"""Whether outputs equal eager's, up to rounding."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from fakexport.program import plain_name


class OtherOutputs(Exception):
    """The outputs cannot be compared: they differ in number, dtype or shape."""


@dataclass(frozen=True)
class Agreement:
    """How far outputs are from eager's.

    Args:
        difference: The largest difference of a number; infinite where only one of the two is NaN or infinite.
        is_equal: No tensor differs by more than the square root of its dtype's precision, relative to its
            largest number (float32: 3e-4; bfloat16: 0.09); whole numbers and booleans do not differ at all.
            The bound allows for different kernels in a different order, and is far below the effect of a
            wrong constant or shape.
    """

    difference: float
    is_equal: bool


def agreement(expected: Sequence[torch.Tensor], found: Sequence[torch.Tensor]) -> Agreement:
    """Compare tensors with those of eager, in order.

    Raises:
        OtherOutputs: they differ in number, dtype or shape.
    """
    kinds, own = [_kind(tensor) for tensor in expected], [_kind(tensor) for tensor in found]
    if kinds != own:
        raise OtherOutputs(
            f"returns {', '.join(own) or 'nothing'}; eager returns {', '.join(kinds) or 'nothing'}"
        )
    pairs = [_compared(*pair) for pair in zip(expected, found, strict=True)]
    differences = [difference for difference, _ in pairs]
    return Agreement(max(differences, default=0.0), all(is_equal for _, is_equal in pairs))


def _compared(expected: torch.Tensor, found: torch.Tensor) -> tuple[float, bool]:
    if not expected.numel():
        return 0.0, True
    precision = torch.finfo(expected.dtype).eps if expected.dtype.is_floating_point else 0.0
    if expected.is_complex():
        precision = torch.finfo(expected.dtype).eps
        expected, found = torch.view_as_real(expected), torch.view_as_real(found)
    a, b = expected.detach().cpu().double(), found.detach().cpu().double()
    same = (a == b) | (a.isnan() & b.isnan())
    distances = torch.where(same, 0.0, (a - b).abs().nan_to_num(nan=math.inf, posinf=math.inf))
    finite = a[a.isfinite()]
    largest = float(finite.abs().max()) if finite.numel() else 0.0
    difference = float(distances.max())
    return difference, difference <= math.sqrt(precision) * largest


def _kind(tensor: torch.Tensor) -> str:
    return f"{plain_name(tensor.dtype)}[{','.join(map(str, tensor.shape))}]"
