"""Rules for the internal memory of torch's CPU kernels: one function per kernel that allocates such memory.

Each function yields the sizes that torch's profiler records in real runs, as expressions over the arguments.
Measured with torch 2.13.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from typing import Any, Protocol, TypeAlias

import torch

from fakexport._torch.costs.operator_memory import is_computed_by_onednn

Sizes: TypeAlias = Iterator[Any]
Args: TypeAlias = Sequence[Any]


class Rule(Protocol):
    def __call__(self, args: Args, result: Any) -> Sizes:
        """Yield the bytes of each temporary allocation of a kernel.

        None among the sizes means that the kernel also allocates an unknown amount.
        """


_SMALL_PRODUCT = 400
"""Batches of matrix products with fewer multiplications per matrix are computed without a library."""

_LSTM_SCRATCH = 8968


def _bytes(tensor: torch.Tensor) -> Any:
    return tensor.numel() * tensor.itemsize


def contiguous(args: Args, result: Any) -> Sizes:
    """The kernel reads a contiguous copy of its input."""
    if not args[0].is_contiguous():
        yield _bytes(args[0])


def copy(args: Args, result: Any) -> Sizes:
    """The kernel copies its input. Source: `aten/src/ATen/native/Im2Col.cpp`."""
    yield _bytes(args[0])


def complex_magnitude(args: Args, result: Any) -> Sizes:
    """The absolute value of a complex number is first computed as a complex number.

    Source: `aten/src/ATen/native/UnaryOps.cpp:unary_op_impl_with_complex_to_float_out`.
    """
    if args[0].is_complex():
        yield _bytes(args[0])


def affine_grid(args: Args, result: Any) -> Sizes:
    """The kernel makes a grid with one coordinate more (`ATen/native/AffineGridGenerator.cpp`)."""
    yield _bytes(result) // result.shape[-1] * (result.shape[-1] + 1)


def attention(args: Args, result: Any) -> Sizes:
    """Each thread has a block of scores with its maxima and sums, and a block of the result.

    Source: `aten/src/ATen/native/cpu/FlashAttentionKernel.cpp:cpu_flash_attention`.
    """
    query, key = args[0], args[1]
    rows, columns = query.shape[-2], key.shape[-2]
    # Blocks have 512 columns and 32 rows; 64 rows for queries of 192 rows or more, 256 for 768 or more.
    block = 32 + 32 * torch.sym_min(1, rows // 192) + 192 * torch.sym_min(1, rows // 768)
    block, columns = torch.sym_min(block, rows), torch.sym_min(512, columns)
    threads = torch.get_num_threads()
    yield threads * (block * columns + 2 * block + block * query.shape[-1]) * max(4, query.itemsize)
    if query.itemsize < 4:
        yield threads * block * columns * query.itemsize
        if is_computed_by_onednn(query.dtype) is not False:  # Keys and values are copied into blocks.
            yield None


def batch_norm(args: Args, result: Any) -> Sizes:
    """The kernel allocates scales and shifts of the channels (`native/cpu/batch_norm_kernel.cpp`)."""
    is_dense = args[0].is_contiguous() or _is_channels_last(args[0])
    yield args[0].shape[1] * max(4, args[0].itemsize) * (2 if is_dense else 3)


def mean(args: Args, result: Any) -> Sizes:
    """The kernel computes a sum and divides it by a number (`aten/src/ATen/native/ReduceOps.cpp:mean`).

    16-bit numbers are converted to float32 first.
    """
    yield from reduction(args, result)
    if result.itemsize == 2:
        yield args[0].numel() * 4
        yield result.numel() * 4
    yield 8
    yield result.itemsize


def reduction(args: Args, result: Any) -> Sizes:
    """The kernel reads its input in the dtype of its result."""
    if args[0].dtype is not result.dtype and args[0].itemsize != 2:
        yield args[0].numel() * result.itemsize


def where(args: Args, result: Any) -> Sizes:
    """The kernel casts both branches, but not the condition."""
    yield from (one.numel() * result.itemsize for one in args[1:] if one.dtype is not result.dtype)


def concatenation(args: Args, result: Any) -> Sizes:
    """The kernel copies tensors whose dtype differs from the dtype of the result."""
    yield from (_bytes(one) for one in args[0] if one.dtype is not result.dtype)


def indexed(args: Args, result: Any) -> Sizes:
    """The kernel stores the positions that a mask selects (`ATen/native/IndexingUtils.h:expandTensors`)."""
    for position, index in enumerate(args[1]):
        if index is not None and index.dtype is torch.bool:
            yield result.shape[position] * index.dim() * 8


def gather(args: Args, result: Any) -> Sizes:
    """The kernel copies the index to 64-bit integers."""
    if args[2].dtype is not torch.int64:
        yield args[2].numel() * 8


def index_put(args: Args, result: Any) -> Sizes:
    """The kernel stores the positions that a mask selects. All count, because the mask is unknown."""
    masks = [index for index in args[1] if index is not None and index.dtype is torch.bool]
    for mask in masks:
        yield mask.numel() * mask.dim() * 8
        yield None


def loss(copies: int) -> Rule:
    """Return the rule of a loss that computes `copies` values per element before it reduces them."""

    def rule(args: Args, result: Any) -> Sizes:
        if result.dim() < args[0].dim():
            yield copies * _bytes(args[0])

    return rule


def logsumexp(args: Args, result: Any) -> Sizes:
    """The kernel stores exponentials, maxima and absolute maxima (`ATen/native/ReduceOps.cpp:logsumexp`)."""
    yield _bytes(args[0]) + _bytes(result)


def kth_value(args: Args, result: Any) -> Sizes:
    """The kernel stores a copy of the input and each element's index (`native/Sorting.cpp:kthvalue_out`)."""
    yield args[0].numel() * (args[0].itemsize + 8)


def is_infinite(args: Args, result: Any) -> Sizes:
    """The kernel stores the absolute values and the number that they are compared with."""
    if args[0].is_floating_point():
        yield _bytes(args[0]) + 8 + args[0].itemsize


def folded(args: Args, result: Any) -> Sizes:
    """The kernel computes the result in a buffer as large as the input (`ATen/native/Col2Im.cpp`)."""
    yield torch.sym_max(0, _bytes(args[0]) - _bytes(result))


def distances(args: Args, result: Any) -> Sizes:
    """The kernel copies both inputs and adds two columns (`ATen/native/Distance.cpp:_euclidean_dist`)."""
    first, second = args[:2]
    rows = [one.numel() // one.shape[-1] * one.itemsize for one in (first, second)]
    wider = [size * (first.shape[-1] + 2) for size in rows]
    before = _bytes(first) + wider[0] + 2 * sum(rows)
    yield torch.sym_max(sum(wider), before - _bytes(result))


def product(skipped: int) -> Rule:
    """Return the rule of a matrix product whose operands follow the first `skipped` arguments.

    An operand without contiguous rows or columns is copied. A batch is copied one matrix at a time.

    Source: `aten/src/ATen/native/LinearAlgebra.cpp:addmm_impl_cpu_`, `bmm_out_or_baddbmm_`.
    """

    def rule(args: Args, result: Any) -> Sizes:
        operands = args[skipped : skipped + 2]
        first, second = operands
        if first.dim() == 3 and bool(first.shape[1] * first.shape[2] * second.shape[2] < _SMALL_PRODUCT):
            return
        for one in operands:
            if one.dim() > 1 and not any(bool(stride == 1) for stride in one.stride()[-2:]):
                yield one.shape[-2] * one.shape[-1] * one.itemsize
        if first.itemsize == 2 and is_computed_by_onednn(first.dtype) is not False:
            yield None

    return rule


def transform(args: Args, result: Any) -> Sizes:
    """A Fourier transform reads its input as one batch, and copies an input that has no such view.

    Source: `aten/src/ATen/native/mkl/SpectralOps.cpp:_exec_fft`.
    """
    if not _is_one_batch(args[0], args[1]):
        yield _bytes(args[0])


def transform_to_real(args: Args, result: Any) -> Sizes:
    """The kernel first transforms all dimensions but the last (`_fft_c2r_mkl` in `SpectralOps.cpp`)."""
    tensor, dims = args[:2]
    if len(dims) == 1:
        yield from transform(args, result)
        return
    first = 0 if _is_one_batch(tensor, dims[:-1]) else _bytes(tensor)
    second = _bytes(tensor) if tensor.dim() > len(dims) else 0
    yield _bytes(tensor) + torch.sym_max(first - _bytes(result), second)


def _is_one_batch(tensor: torch.Tensor, dims: Sequence[int]) -> bool:
    """Return whether the dimensions that are not transformed can be viewed as one dimension."""
    transformed = {dim % tensor.dim() for dim in dims}
    others = [
        (stride, size)
        for dim, (stride, size) in enumerate(zip(tensor.stride(), tensor.shape, strict=True))
        if dim not in transformed and bool(size != 1)
    ]
    ordered = sorted(others, key=lambda one: -int(one[0]))
    return all(bool(outer[0] == inner[0] * inner[1]) for outer, inner in itertools.pairwise(ordered))


def lstm(args: Args, result: Any) -> Sizes:
    """Each layer and direction needs the sum of its biases, its weights in blocks, and each step's gates.

    Source: `aten/src/ATen/native/mkldnn/RNN.cpp:mkldnn_rnn_layer`; measured on AVX2.
    """
    tensor, from_input, from_hidden = args[:3]
    steps, batch, inputs = tensor.shape
    hidden, size = from_hidden.shape[1], tensor.itemsize
    width = (4 * hidden + 63) // 64 * 64
    gates = steps * batch * ((4 * hidden + width) // 2 + (0 if hidden % 256 else 32)) * size
    weights = width * (inputs + hidden) * size
    yield from_input.shape[0] * size + weights + gates + 9 * hidden * batch * size + _LSTM_SCRATCH
    is_wide = bool(inputs > hidden)
    if is_wide:
        yield _bytes(tensor)
    if is_wide or tensor.dtype is not torch.float32 or torch.backends.cpu.get_cpu_capability() != "AVX2":
        yield None


def resized(points: int) -> Rule:
    """Return the rule of a resize that reads `points` points per dimension.

    Images with at most 128 rows and columns in total are resized in channels-last format. Larger images are
    resized with an index and a weight for each row and column.

    Source: `aten/src/ATen/native/cpu/UpSampleKernel.cpp:_use_vectorized_kernel_cond_2d`.
    """

    def rule(args: Args, result: Any) -> Sizes:
        if not _is_channels_last(args[0]):
            lines = result.shape[-1] + result.shape[-2]
            is_small = torch.sym_min(1, 128 // lines) if points < 4 else 0
            yield is_small * (_bytes(args[0]) + _bytes(result))
            yield (1 - is_small) * lines * points * (8 + result.itemsize)

    return rule


def roll(args: Args, result: Any) -> Sizes:
    """The kernel rolls one dimension at a time.

    Source: `aten/src/ATen/native/TensorTransformations.h:roll_common`.
    """
    if len(args) > 2 and len(args[2]) > 1:
        yield _bytes(args[0])


def safe_softmax(args: Args, result: Any) -> Sizes:
    """The kernel looks for fully masked rows. Source: `aten/src/ATen/native/SoftMax.cpp:_safe_softmax`."""
    yield result.numel()
    yield result.numel() // result.shape[args[1]]
    yield result.itemsize


def sort(args: Args, result: Any) -> Sizes:
    """The kernel copies the indices of one row to all rows. Source: `aten/src/ATen/native/Sorting.cpp`."""
    dim = args[-1] if len(args) > 1 and isinstance(args[-1], int) and args[-1] is not True else -1
    yield (args[0].shape[dim] if args[0].dim() else 1) * 8


def _is_channels_last(tensor: torch.Tensor) -> bool:
    """Return whether a kernel reads an image in channels-last format. One channel alone does not decide.

    Source: `c10/core/MemoryFormat.h:is_channels_last_strides_2d_s4`.
    """
    if tensor.dim() != 4 or not tensor.is_contiguous(memory_format=torch.channels_last):
        return False
    return bool(tensor.stride(1) * tensor.shape[1] <= tensor.stride(3))
