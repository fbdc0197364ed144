"""What kernels take for themselves while they run, and no tensor of the program shows.

Found by comparing torch's record of real runs with the program, allocation by allocation. The CPU's, as of
torch 2.13; an operator that is not here takes nothing that was seen.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Protocol

import torch

from fakexport._torch.operator_memory import tensors_in
from fakexport._torch.operator_schema import numbers_for_tensors
from fakexport.memory.convolution import convolution

_Sizes = Iterator[Any]
_Args = Sequence[Any]


class _Rule(Protocol):
    def __call__(self, args: _Args, result: Any) -> _Sizes:
        """Yield the bytes of each piece of memory that a kernel takes while its results are there."""


def temporaries(
    operator: Any, args: _Args, kwargs: Mapping[str, Any], result: Any
) -> Iterator[tuple[str, Any]]:
    """Yield device and bytes of what the kernel of an operator takes for itself.

    Args:
        operator: One with kernels of its own, not made of others.
        args, kwargs, result: Fakes and symbolic numbers. Comparisons of sizes are answered by the examples'.
    """
    tensors = tensors_in((args, kwargs))
    if not tensors or tensors[0].device.type != "cpu":
        return
    rule = _RULES.get(operator._schema.name)
    sizes = () if rule is None else rule(args, result)
    yield from (("cpu", size) for size in (*_numbers(operator, args, kwargs, tensors[0]), *sizes))


def _numbers(operator: Any, args: _Args, kwargs: Mapping[str, Any], first: torch.Tensor) -> _Sizes:
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


def _bytes(tensor: torch.Tensor) -> Any:
    return tensor.numel() * tensor.itemsize


def _contiguous(args: _Args, result: Any) -> _Sizes:
    """The kernel reads a contiguous copy of its input."""
    if not args[0].is_contiguous():
        yield _bytes(args[0])


def _copy(args: _Args, result: Any) -> _Sizes:
    """The kernel copies its input: `aten/src/ATen/native/Im2Col.cpp`."""
    yield _bytes(args[0])


def _complex_magnitude(args: _Args, result: Any) -> _Sizes:
    """A complex number's absolute value is computed as a complex number first.

    Source: `aten/src/ATen/native/UnaryOps.cpp:unary_op_impl_with_complex_to_float_out`.
    """
    if args[0].is_complex():
        yield _bytes(args[0])


def _attention(args: _Args, result: Any) -> _Sizes:
    """Each thread has a block of scores, its maxima and sums, and a block of the result.

    Source: `aten/src/ATen/native/cpu/FlashAttentionKernel.cpp:cpu_flash_attention`.
    """
    query, key = args[0], args[1]
    rows, columns = query.shape[-2], key.shape[-2]
    # 32 rows at a time, 64 from 192 on, 256 from 768 on; 512 columns.
    block = 32 + 32 * torch.sym_min(1, rows // 192) + 192 * torch.sym_min(1, rows // 768)
    block, columns = torch.sym_min(block, rows), torch.sym_min(512, columns)
    threads = torch.get_num_threads()
    yield threads * (block * columns + 2 * block + block * query.shape[-1]) * 4
    if query.itemsize < 4:
        yield threads * block * columns * query.itemsize


def _batch_norm(args: _Args, result: Any) -> _Sizes:
    """Scale and shift of each channel: `aten/src/ATen/native/cpu/batch_norm_kernel.cpp`."""
    is_dense = args[0].is_contiguous() or _is_channels_last(args[0])
    yield args[0].shape[1] * 4 * (2 if is_dense else 3)


def _mean(args: _Args, result: Any) -> _Sizes:
    """A sum that is divided by a number: `aten/src/ATen/native/ReduceOps.cpp:mean`."""
    yield 8
    yield result.itemsize


def _wider_sum(args: _Args, result: Any) -> _Sizes:
    """Booleans are cast before they are added."""
    if args[0].dtype is torch.bool and result.dtype is not torch.bool:
        yield args[0].numel() * result.itemsize


def _resized(points: int) -> _Rule:
    """Return the rule of a resize that reads so many points in each dimension.

    Images of up to 128 rows and columns together are resized with the channels last, larger ones by an index
    and a weight for each row and column.

    Source: `aten/src/ATen/native/cpu/UpSampleKernel.cpp:_use_vectorized_kernel_cond_2d`.
    """

    def rule(args: _Args, result: Any) -> _Sizes:
        if not _is_channels_last(args[0]):
            lines = result.shape[-1] + result.shape[-2]
            is_small = torch.sym_min(1, 128 // lines) if points < 4 else 0
            yield is_small * (_bytes(args[0]) + _bytes(result))
            yield (1 - is_small) * lines * points * (8 + result.itemsize)

    return rule


def _roll(args: _Args, result: Any) -> _Sizes:
    """One dimension after the other: `aten/src/ATen/native/TensorTransformations.h:roll_common`."""
    if len(args) > 2 and len(args[2]) > 1:
        yield _bytes(args[0])


def _safe_softmax(args: _Args, result: Any) -> _Sizes:
    """Rows that are masked as a whole are looked for: `aten/src/ATen/native/SoftMax.cpp:_safe_softmax`."""
    yield result.numel()
    yield result.numel() // result.shape[args[1]]
    yield result.itemsize


def _sort(args: _Args, result: Any) -> _Sizes:
    """The indices of one row, which every row starts from: `aten/src/ATen/native/Sorting.cpp`."""
    dim = args[-1] if len(args) > 1 and isinstance(args[-1], int) and args[-1] is not True else -1
    yield (args[0].shape[dim] if args[0].dim() else 1) * 8


def _is_channels_last(tensor: torch.Tensor) -> bool:
    return tensor.dim() == 4 and tensor.is_contiguous(memory_format=torch.channels_last)


_RULES: Mapping[str, _Rule] = {
    "aten::_scaled_dot_product_flash_attention_for_cpu": _attention,
    "aten::_log_softmax": _contiguous,
    "aten::_safe_softmax": _safe_softmax,
    "aten::_softmax": _contiguous,
    "aten::abs": _complex_magnitude,
    "aten::avg_pool2d": _contiguous,
    "aten::convolution": convolution,
    "aten::cumsum": _wider_sum,
    "aten::im2col": _copy,
    "aten::max_pool2d_with_indices": _contiguous,
    "aten::mean": _mean,
    "aten::native_batch_norm": _batch_norm,
    "aten::native_group_norm": _contiguous,
    "aten::native_layer_norm": _contiguous,
    "aten::roll": _roll,
    "aten::sort": _sort,
    "aten::sum": _wider_sum,
    "aten::upsample_bicubic2d": _resized(4),
    "aten::upsample_bilinear2d": _resized(2),
    "aten::upsample_nearest2d": _resized(1),
}
