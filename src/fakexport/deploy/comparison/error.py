"""Compute how much a tensor differs from its expected value."""

from __future__ import annotations

import math

import torch

from fakexport.emulation.history import bits
from fakexport.report import TensorError

ALLOWED_RATIO = 4.0
"""Limit on the program's error, as a multiple of eager mode's error or of the rounding error."""


def tensor_error(eager: object, program: object, exact: object = None) -> TensorError:
    """Compare two values. If neither are tensors or numbers, the distance is 0 if equal, else infinity."""
    first, second = _tensor(eager), _tensor(program)
    if first is None or second is None:
        is_equal = type(eager) is type(program) and eager == program
        return TensorError(is_equal, 0.0 if is_equal else math.inf, None, None, 0.0)
    if (first.shape, first.dtype) != (second.shape, second.dtype):
        return TensorError(False, math.inf, None, None, 0.0)
    second = second.to(first.device)
    is_equal = torch.equal(bits(first), bits(second))
    difference = 0.0 if is_equal else distance(first, second)
    if not (first.is_floating_point() or first.is_complex()):
        return TensorError(is_equal, difference, None, None, 0.0)
    rounding = torch.finfo(first.dtype).eps * largest(first)
    reference = _tensor(exact)
    if reference is None or reference.shape != first.shape:
        return TensorError(is_equal, difference, None, None, ALLOWED_RATIO * rounding)
    reference = reference.to(first.device)
    of_eager = distance(first, reference)
    of_program = of_eager if is_equal else distance(second, reference)
    return TensorError(is_equal, difference, of_eager, of_program, ALLOWED_RATIO * max(of_eager, rounding))


def _tensor(value: object) -> torch.Tensor | None:
    if isinstance(value, torch.Tensor):
        return value
    return torch.tensor(value) if isinstance(value, (bool, int, float)) else None


def distance(first: torch.Tensor, second: torch.Tensor) -> float:
    """Return the largest distance between elements. Two equal infinities, or two NaNs, have distance 0."""
    if first.numel() == 0:
        return 0.0
    wide = torch.complex128 if first.is_complex() or second.is_complex() else torch.float64
    a, b = first.to(wide), second.to(wide)
    distance = torch.where(
        (a == b) | (a.isnan() & b.isnan()), torch.zeros((), dtype=torch.float64), (a - b).abs()
    )
    return float(torch.nan_to_num(distance, nan=math.inf, posinf=math.inf).max())


def largest(tensor: torch.Tensor) -> float:
    """Return the largest magnitude of the finite elements; 0 if there are none."""
    wide = tensor.double() if tensor.is_floating_point() else tensor  # float8 has few kernels, so convert
    finite = wide[wide.isfinite()]
    return float(finite.abs().max()) if finite.numel() else 0.0
