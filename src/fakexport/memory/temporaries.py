"""What kernels take for themselves while they run, and no tensor of the program shows.

Found by comparing torch's record of real runs with the program, allocation by allocation. The CPU's, as of
torch 2.13; an operator that is not here takes nothing that was seen.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch

from fakexport._torch.operator_memory import tensors_in
from fakexport._torch.operator_schema import numbers_for_tensors

_Sizes = Iterator[Any]


def temporaries(
    operator: Any, args: Sequence[Any], kwargs: Mapping[str, Any], result: Any
) -> Iterator[tuple[str, Any]]:
    """Yield device and bytes of what the kernel of an operator takes for itself.

    Args:
        operator: One with kernels of its own, not made of others.
        args, kwargs, result: Fakes and symbolic numbers.
    """
    tensors = tensors_in((args, kwargs))
    if not tensors or tensors[0].device.type != "cpu":
        return
    own = _OWN.get(operator._schema.name)
    sizes = own(args, kwargs, result) if own else ()
    yield from (("cpu", size) for size in (*_numbers(operator, args, kwargs, tensors[0]), *sizes))


def _numbers(operator: Any, args: Sequence[Any], kwargs: Mapping[str, Any], first: torch.Tensor) -> _Sizes:
    """Yield the bytes of the tensors of one element that stand for numbers, and of their casts.

    Source: `aten/src/ATen/ScalarOps.h:wrapped_scalar_tensor`, `aten/src/ATen/TensorIterator.cpp`.
    """
    for number in numbers_for_tensors(operator, args, kwargs):
        dtype = _dtype_of(number)
        yield dtype.itemsize
        if dtype is not first.dtype:
            yield first.itemsize


def _dtype_of(number: Any) -> torch.dtype:
    if isinstance(number, bool):
        return torch.bool
    if isinstance(number, complex):
        return torch.complex128
    return torch.int64 if isinstance(number, (int, torch.SymInt)) else torch.float64


def _abs(args: Sequence[Any], kwargs: Mapping[str, Any], result: Any) -> _Sizes:
    """A complex number's absolute value is computed as a complex number first.

    Source: `aten/src/ATen/native/UnaryOps.cpp:unary_op_impl_with_complex_to_float_out`.
    """
    if args[0].is_complex():
        yield args[0].numel() * args[0].itemsize


def _contiguous(args: Sequence[Any], kwargs: Mapping[str, Any], result: Any) -> _Sizes:
    """The kernel reads a contiguous copy of its input."""
    if not args[0].is_contiguous():
        yield args[0].numel() * args[0].itemsize


_OWN: dict[str, Callable[[Sequence[Any], Mapping[str, Any], Any], _Sizes]] = {
    "aten::abs": _abs,
    "aten::avg_pool2d": _contiguous,
}
