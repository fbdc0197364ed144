"""fp8 and 4-bit matrix products with block-wise scales, as used by checkpoints such as DeepSeek's.

For these products, transformers downloads a Triton kernel from the hub: `kernels-community/finegrained-fp8`
(transformers/integrations/finegrained_fp8.py, 5.23). The operators in this module have the same names and
arguments as the operators of the kernel, but a namespace without a build number. On real data they compute
the same result in plain torch: each row is quantized to fp8 with one scale per block of columns, and products
are accumulated in float32.

In an MX format, each row of a weight has one scale per 32 columns, and the scale is a power of two. MXFP8
stores fp8 numbers, and MXFP4 stores two 4-bit numbers per byte. For a weight in an MX format, the scales of
the activations are powers of two, too.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor

from fakexport._torch.operators.operator_registry import register_operator

from .mxfp4_products import unpacked

NAMESPACE = "finegrained_fp8"
_ROWS = "w8a8_block_dynamic_fp8_matmul"
_ROWS_STATIC = "w8a8_block_static_fp8_matmul"
_ROWS_TENSOR = "w8a8_tensor_dynamic_fp8_matmul"
_GROUPED = "w8a8_block_dynamic_fp8_matmul_grouped"
_BATCHED = "w8a8_block_dynamic_fp8_matmul_batched"
_MX = {torch.int8: "w4a8_mx_dynamic_fp4_matmul", torch.float8_e4m3fn: "w8a8_mx_dynamic_fp8_matmul"}
_LARGEST = torch.finfo(torch.float8_e4m3fn).max
_MX_BLOCK = 32


def register_fp8_products() -> None:
    """Register the operators, with the arguments of the real kernels, and their FLOP formula."""
    operands, rest = "(Tensor A, Tensor B, Tensor Bs,", "ScalarType? output_dtype=None) -> Tensor"
    groups = f"{operands} Tensor offsets, Tensor tokens_per_expert,"
    selected = f"{operands} Tensor expert_ids,"
    blocks = f"int[] block_size, {rest}"
    kernels: list[tuple[str, str, Callable[..., Tensor]]] = [
        (_ROWS, f"{operands} {blocks}", _rows),
        (_ROWS_STATIC, f"{operands} Tensor As, {blocks}", _rows_static),
        (_ROWS_TENSOR, f"{operands} {rest}", _rows_tensor),
        (_GROUPED, f"{groups} {blocks}", partial(_grouped, _rows)),
        (_BATCHED, f"{selected} {blocks}", partial(_batched, _rows)),
    ]
    for name in _MX.values():
        kernels += [
            (name, f"{operands} {rest}", _rows_mx),
            (f"{name}_grouped", f"{groups} {rest}", partial(_grouped, _rows_mx)),
            (f"{name}_batched", f"{selected} {rest}", partial(_batched, _rows_mx)),
        ]
    for name, arguments, kernel in kernels:
        register_operator(f"{NAMESPACE}::{name}", arguments, kernel, _empty, _flops)


def _call(name: str, *args: Any) -> Tensor:
    result: Tensor = getattr(getattr(torch.ops, NAMESPACE), name)(*args)
    return result


def matmul(
    given: Tensor,
    weight: Tensor,
    scales: Tensor,
    block_size: list[int] | None,
    output_dtype: torch.dtype | None = None,
    activation_scale: Tensor | None = None,
) -> Tensor:
    """Return `given @ weight.T`, using the operator that the kernel selects for these scales.

    Args:
        given: Activations `[..., K]`, bfloat16, float16 or float32.
        weight: `[N, K]`, float8_e4m3fn; or `[N, K / 2]`, int8, for MXFP4.
        scales: `[ceil(N / n), ceil(K / k)]`; one element if `block_size`, `[n, k]`, is None. An MX format
            has `[N, K / 32]` in float8_e8m0fnu, and `block_size` is not used.
        activation_scale: One scale for all activations; None to compute one per row and block of columns.
    Raises:
        NotImplementedError: For other weights, or static activation scales with one scale per weight; the
            kernel's `matmul` rejects these.
    """
    if _check(weight, scales):
        return _call(_MX[weight.dtype], given, weight, scales, output_dtype)
    if block_size is None or list(block_size) == list(weight.shape):
        if activation_scale is not None:
            raise NotImplementedError(
                "the kernel finegrained-fp8 does not support static activation scales with a single scale "
                "per weight: "
                'write "dequantize": true into the quantization_config to check the unquantized model'
            )
        return _call(_ROWS_TENSOR, given, weight, scales, output_dtype)
    if activation_scale is not None:
        return _call(_ROWS_STATIC, given, weight, scales, activation_scale, block_size, output_dtype)
    return _call(_ROWS, given, weight, scales, block_size, output_dtype)


def grouped_matmul(
    given: Tensor,
    weight: Tensor,
    scales: Tensor,
    offsets: Tensor,
    tokens_per_expert: Tensor,
    block_size: list[int] | None,
) -> Tensor:
    """Return the product of each row `[S, K]`, sorted by group, with the matrix of its group.

    The weight is `[E, N, K]`, its scales are `[E, N / n, K / k]`, and `offsets`, the end of each group's
    rows, is `[E]`.

    Raises:
        NotImplementedError: The weight is not in an MX format, and is not float8_e4m3fn or has no block size.
    """
    if _check(weight, scales, block_size):
        name = f"{_MX[weight.dtype]}_grouped"
        return _call(name, given, weight, scales, offsets, tokens_per_expert, given.dtype)
    return _call(_GROUPED, given, weight, scales, offsets, tokens_per_expert, block_size)


def batched_matmul(
    given: Tensor, weight: Tensor, scales: Tensor, block_size: list[int] | None, expert_ids: Tensor
) -> Tensor:
    """Return the product of each row with the matrix that `expert_ids` selects, as `grouped_matmul` does."""
    if _check(weight, scales, block_size):
        return _call(f"{_MX[weight.dtype]}_batched", given, weight, scales, expert_ids, given.dtype)
    return _call(_BATCHED, given, weight, scales, expert_ids, block_size)


def on_a_gpu(product: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """Return a wrapper of `product` that raises for CPU tensors, because the kernel does not support them."""

    def refuse_or_call(rows: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        if rows.device.type == "cpu":
            raise NotImplementedError(
                "fp8 layers run only on a GPU: the kernel finegrained-fp8 is written in Triton"
            )
        return product(rows, *args, **kwargs)

    return refuse_or_call


def _check(weight: Tensor, scales: Tensor, block_size: Sequence[int] | None = ()) -> bool:
    """Return whether a weight is in an MX format.

    Raises:
        NotImplementedError: the kernel has no operator for this weight and its scales.
    """
    shape = (*weight.shape[:-1], _columns(weight) // _MX_BLOCK)
    if weight.dtype in _MX and scales.dtype is torch.float8_e8m0fnu and tuple(scales.shape) == shape:
        return True
    if weight.dtype is not torch.float8_e4m3fn:
        raise NotImplementedError(
            f"the kernel finegrained-fp8 is not emulated for weights of {weight.dtype} with scales "
            f"{list(scales.shape)} of {scales.dtype}"
        )
    if block_size is None:
        raise NotImplementedError(
            "the kernel finegrained-fp8 is not emulated for experts that are not quantized in blocks"
        )
    return False


def _columns(weight: Tensor) -> int:
    """Return the number of columns of a weight. Each byte of an int8 weight stores two columns."""
    return weight.shape[-1] * (2 if weight.dtype is torch.int8 else 1)


def _empty(
    given: Tensor, weight: Tensor, *rest: Any, output_dtype: torch.dtype | None = None, **more: Any
) -> Tensor:
    """Return an uninitialized result of one of these operators. Raise if the kernel would raise."""
    dtype = output_dtype or next((value for value in rest if isinstance(value, torch.dtype)), given.dtype)
    if not given.is_contiguous() or not weight.is_contiguous():
        raise RuntimeError("the kernel finegrained-fp8 takes contiguous tensors only")
    if given.shape[-1] != _columns(weight):
        raise RuntimeError(
            f"rows of length {given.shape[-1]} do not match a weight of shape {tuple(weight.shape)}"
        )
    return given.new_empty((*given.shape[:-1], weight.shape[-2]), dtype=dtype)


def _flops(given: Tensor, weight: Tensor, *args: Any, **kwargs: Any) -> Any:
    return 2 * given.numel() * weight.shape[-2]


def _rows(
    given: Tensor,
    weight: Tensor,
    scales: Tensor,
    block_size: list[int],
    output_dtype: torch.dtype | None = None,
) -> Tensor:
    product = _rounded(given, block_size[1]) @ _weight(weight, scales, block_size).mT
    return product.to(output_dtype or given.dtype)


def _rows_static(
    given: Tensor,
    weight: Tensor,
    scales: Tensor,
    given_scale: Tensor,
    block_size: list[int],
    output_dtype: torch.dtype | None = None,
) -> Tensor:
    scale = given_scale.float().reshape(1)
    rounded = (given.float() / scale).clamp(-_LARGEST, _LARGEST).to(torch.float8_e4m3fn).float()
    return (rounded @ _weight(weight, scales, block_size).mT * scale).to(output_dtype or given.dtype)


def _rows_tensor(
    given: Tensor, weight: Tensor, scales: Tensor, output_dtype: torch.dtype | None = None
) -> Tensor:
    product = _rounded(given, given.shape[-1]) @ weight.float().mT * scales.float().reshape(1)
    return product.to(output_dtype or given.dtype)


def _rows_mx(
    given: Tensor, weight: Tensor, scales: Tensor, output_dtype: torch.dtype | None = None
) -> Tensor:
    plain = unpacked(weight.view(torch.uint8)) if weight.dtype is torch.int8 else weight
    rounded = _rounded(given, _MX_BLOCK, is_power=True)
    product = rounded @ _weight(plain, scales, [1, _MX_BLOCK]).mT
    return product.to(output_dtype or given.dtype)


def _grouped(
    product: Callable[..., Tensor],
    given: Tensor,
    weight: Tensor,
    scales: Tensor,
    offsets: Tensor,
    tokens_per_expert: Tensor,
    *rest: Any,
) -> Tensor:
    result, start = _empty(given, weight, *rest).zero_(), 0
    for matrix, own, end in zip(weight, scales, offsets.tolist(), strict=True):
        result[start:end] = product(given[start:end], matrix, own, *rest)
        start = end
    return result


def _batched(
    product: Callable[..., Tensor],
    given: Tensor,
    weight: Tensor,
    scales: Tensor,
    expert_ids: Tensor,
    *rest: Any,
) -> Tensor:
    result = _empty(given, weight, *rest).zero_()
    for index in expert_ids.unique().tolist():
        if index < weight.shape[0]:
            chosen = expert_ids == index
            result[chosen] = product(given[chosen], weight[index], scales[index], *rest)
    return result


def _rounded(given: Tensor, block: int, *, is_power: bool = False) -> Tensor:
    """Return activations, rounded to fp8 with one scale per row and block of columns, as float32.

    Args:
        is_power: Whether to round each scale up to a power of two.
    """
    columns = given.shape[-1]
    padded = torch.nn.functional.pad(given.float(), (0, -columns % block)).unflatten(-1, (-1, block))
    largest = padded.abs().amax(dim=-1, keepdim=True)
    scale = torch.where(largest > 0, largest / _LARGEST, torch.ones_like(largest))
    if is_power:
        mantissa, exponent = torch.frexp(scale)  # scale is mantissa * 2**exponent, mantissa at least 0.5
        scale = torch.ldexp(torch.ones_like(scale), exponent - (mantissa == 0.5).to(exponent.dtype))
    rounded = (padded / scale).to(torch.float8_e4m3fn).float() * scale
    result: Tensor = rounded.flatten(-2)[..., :columns]
    return result


def _weight(weight: Tensor, scales: Tensor, block_size: list[int]) -> Tensor:
    """Return the dequantized weight `[N, K]` in float32."""
    rows, columns = block_size
    of_rows = scales.float().repeat_interleave(rows, dim=0)[: weight.shape[0]]
    return weight.float() * of_rows.repeat_interleave(columns, dim=1)[:, : weight.shape[1]]
