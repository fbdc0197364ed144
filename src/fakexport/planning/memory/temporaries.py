"""Temporary memory that kernels allocate internally. No tensor of the program represents it.

The rules were found by comparing the allocations that torch recorded in real runs on a CPU with those of the
program, for the 650 operators of torch's own tests (`op_db`), with torch 2.13. Operators in neither `_RULES`
nor `_NOT_MODELED` allocated nothing internally in these runs.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import torch

from fakexport._torch.costs.operator_memory import tensors_in
from fakexport._torch.operators.operator_schema import is_mutating, numbers_for_tensors, promoted_dtype
from fakexport.planning.memory import workspaces
from fakexport.planning.memory.convolution import convolution
from fakexport.planning.memory.workspaces import Args, Rule, Sizes


def temporaries(
    operator: Any, args: Args, kwargs: Mapping[str, Any], result: Any
) -> Iterator[tuple[str, Any]]:
    """Yield the device and bytes of each internal allocation of an operator's kernel.

    None instead of the bytes means that the kernel's memory, or a part of it, is not modeled.

    Args:
        operator: An operator with its own kernels, not composed of other operators.
        args, kwargs, result: Fake tensors and symbolic numbers. Sizes are compared at their example values.
    """
    tensors = tensors_in((args, kwargs))
    name = operator._schema.name
    device = tensors[0].device if tensors else None
    if device is None:
        return
    unknown = _NOT_MODELED if device.type == "cpu" else _NOT_MODELED_ON_GPU
    is_unmeasured = device.type == "cpu" and (
        (name in _ONLY_FLOAT32 and tensors[0].itemsize == _HALF_BYTES)
        or ("_backward" in name and name.partition("_backward")[0] not in _BACKWARD)
    )
    if name in unknown or is_unmeasured or name.partition("::")[0] not in _NAMESPACES:
        yield str(device), None
    rule = (_RULES if device.type == "cpu" else _RULES_ON_GPU).get(name)
    if device.type != "cpu":
        yield from ((str(device), size) for size in (rule(args, result) if rule else ()))
        return
    if rule is not None:
        yield from (("cpu", size) for size in rule(args, result))
    elif (torch.Tag.pointwise in operator.tags and name not in _WITH_MASK) or name in _CASTING:
        yield from (("cpu", size) for size in _casts(operator, args, kwargs, result))
    yield from (("cpu", size) for size in _numbers(operator, args, kwargs, tensors[0]))


def _casts(operator: Any, args: Args, kwargs: Mapping[str, Any], result: Any) -> Sizes:
    """Yield the bytes of arguments cast to the kernel's computation dtype, and of a result cast back.

    The result is cast if it is written to a tensor of a different dtype.

    Source: `aten/src/ATen/TensorIterator.cpp:TensorIteratorBase::compute_types`.
    """
    is_written = is_mutating(operator)
    if not isinstance(result, torch.Tensor) or any(one.is_complex() for one in tensors_in(args)):
        return
    is_computed_in_result = not is_written and result.dtype is not torch.bool
    dtype = result.dtype if is_computed_in_result else promoted_dtype((*args, *kwargs.values()))
    if is_written and result.dtype is not dtype:
        yield result.numel() * dtype.itemsize
    yield from (one.numel() * dtype.itemsize for one in tensors_in(args) if one.dtype is not dtype)


def _numbers(operator: Any, args: Args, kwargs: Mapping[str, Any], first: torch.Tensor) -> Sizes:
    """Yield the bytes of one-element tensors that replace Python numbers, and of their casts.

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


_RULES: Mapping[str, Rule] = {
    "aten::_euclidean_dist": workspaces.distances,
    "aten::_fft_c2c": workspaces.transform,
    "aten::_fft_c2r": workspaces.transform_to_real,
    "aten::_fft_r2c": workspaces.transform,
    "aten::_log_softmax": workspaces.contiguous,
    "aten::_safe_softmax": workspaces.safe_softmax,
    "aten::_scaled_dot_product_flash_attention_for_cpu": workspaces.attention,
    "aten::_softmax": workspaces.contiguous,
    "aten::abs": workspaces.complex_magnitude,
    "aten::addmm": workspaces.product(1),
    "aten::affine_grid_generator": workspaces.affine_grid,
    "aten::avg_pool2d": workspaces.contiguous,
    "aten::baddbmm": workspaces.product(1),
    "aten::binary_cross_entropy": workspaces.loss(1),
    "aten::binary_cross_entropy_with_logits": workspaces.loss(2),
    "aten::bmm": workspaces.product(0),
    "aten::cat": workspaces.concatenation,
    "aten::col2im": workspaces.folded,
    "aten::convolution": convolution,
    "aten::cumprod": workspaces.reduction,
    "aten::cumsum": workspaces.reduction,
    "aten::dist": workspaces.copy,
    "aten::gather": workspaces.gather,
    "aten::huber_loss": workspaces.loss(1),
    "aten::im2col": workspaces.copy,
    "aten::index": workspaces.indexed,
    "aten::index_put": workspaces.index_put,
    "aten::index_put_": workspaces.index_put,
    "aten::isinf": workspaces.is_infinite,
    "aten::kthvalue": workspaces.kth_value,
    "aten::logsumexp": workspaces.logsumexp,
    "aten::max_pool2d_with_indices": workspaces.contiguous,
    "aten::mean": workspaces.mean,
    "aten::median": workspaces.copy,
    "aten::mkldnn_rnn_layer": workspaces.lstm,
    "aten::mm": workspaces.product(0),
    "aten::mse_loss": workspaces.loss(2),
    "aten::nanmedian": workspaces.copy,
    "aten::native_batch_norm": workspaces.batch_norm,
    "aten::native_group_norm": workspaces.contiguous,
    "aten::native_layer_norm": workspaces.contiguous,
    "aten::prod": workspaces.reduction,
    "aten::roll": workspaces.roll,
    "aten::smooth_l1_loss": workspaces.loss(2),
    "aten::soft_margin_loss": workspaces.loss(1),
    "aten::sort": workspaces.sort,
    "aten::sum": workspaces.reduction,
    "aten::upsample_bicubic2d": workspaces.resized(4),
    "aten::upsample_bilinear2d": workspaces.resized(2),
    "aten::upsample_nearest2d": workspaces.resized(1),
    "aten::where": workspaces.where,
}

_RULES_ON_GPU: Mapping[str, Rule] = {"aten::_safe_softmax": workspaces.safe_softmax}
"""Rules that are composed of other operators, so that they hold on each device. Measured on an H200."""

_CASTING = frozenset({"aten::floor_divide", "aten::rsub"})
"""Operators without the tag `pointwise` that cast their arguments to one dtype."""

_NAMESPACES = frozenset({"aten", "prim", "prims", "_c10d_functional"})
"""Namespaces of torch. The internal memory of other libraries' operators is unknown."""

_WITH_MASK = frozenset({"aten::masked_fill", "aten::masked_fill_"})
"""Elementwise operators that read booleans without a cast."""

_NOT_MODELED = frozenset(
    f"aten::{name}"
    for name in (
        *("_chunk_cat", "_embedding_bag", "_embedding_bag_forward_only", "_linalg_det", "_linalg_eigh"),
        *("_linalg_eigvals", "_linalg_slogdet", "_linalg_svd", "_to_sparse", "_trilinear", "_unique"),
        *("_unique2", "_unsafe_masked_index", "_unsafe_masked_index_put_accumulate"),
        *("_upsample_bicubic2d_aa", "_upsample_bilinear2d_aa", "_upsample_lanczos2d_aa"),
        *("_upsample_nearest_exact1d", "_upsample_nearest_exact3d", "histc"),
        *("isin", "linalg_eig", "linalg_inv_ex", "linalg_lu", "linalg_lu_factor_ex", "linalg_qr"),
        *("linalg_matrix_exp", "linalg_pinv", "masked_select", "multinomial", "mvlgamma"),
        *("rrelu_with_noise", "scatter_reduce"),
        *("unique_consecutive", "unique_dim", "upsample_linear1d", "upsample_nearest1d"),
        *("upsample_nearest3d", "upsample_trilinear3d"),
    )
)
"""Operators whose internal memory follows no known rule."""

_ONLY_FLOAT32 = frozenset(
    f"aten::{name}"
    for name in (
        *("_euclidean_dist", "addbmm", "affine_grid_generator", "binary_cross_entropy"),
        *("binary_cross_entropy_with_logits", "gather", "huber_loss", "mse_loss", "renorm", "scatter"),
        *("scatter_", "scatter_add", "scatter_add_", "smooth_l1_loss", "soft_margin_loss"),
    )
)
"""Operators whose kernels convert 16-bit numbers in memory of unknown size."""

_HALF_BYTES = 2

_BACKWARD = frozenset(
    f"aten::{name}"
    for name in (
        *("_adaptive_avg_pool2d", "_adaptive_avg_pool3d", "_cdist", "_log_softmax", "_pdist"),
        *("_prelu_kernel", "_segment_reduce", "_softmax", "adaptive_max_pool2d", "adaptive_max_pool3d"),
        *("avg_pool2d", "avg_pool3d", "binary_cross_entropy", "diagonal", "elu", "embedding_dense"),
        *("fractional_max_pool2d", "fractional_max_pool3d", "gelu", "glu", "grid_sampler_2d"),
        *("grid_sampler_3d", "hardshrink", "hardsigmoid", "hardswish", "hardtanh", "huber_loss"),
        *("leaky_relu", "log_sigmoid", "logit", "max_pool2d_with_indices", "max_pool3d_with_indices"),
        *("mish", "mse_loss", "multi_margin_loss", "multilabel_margin_loss", "native_group_norm"),
        *("native_layer_norm", "nll_loss", "nll_loss2d", "reflection_pad1d", "replication_pad1d"),
        *("replication_pad2d", "select", "sigmoid", "silu", "slice", "smooth_l1_loss", "softplus"),
        *("softshrink", "tanh", "threshold", "unfold", "upsample_bicubic2d", "upsample_bilinear2d"),
        *("upsample_linear1d", "upsample_nearest1d", "upsample_trilinear3d"),
    )
)
"""Operators whose backward kernels allocated nothing internally in measurements. Others are not modeled."""

_NOT_MODELED_ON_GPU = frozenset(
    f"aten::{name}" for name in ("convolution", "convolution_backward", "_cudnn_rnn", "miopen_rnn")
)
"""Operators whose libraries choose a workspace at run time."""
