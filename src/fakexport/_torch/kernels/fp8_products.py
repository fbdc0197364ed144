"""fp8 matrix products with block-wise scales, as used by fp8 checkpoints such as DeepSeek's.

For these products, transformers calls the Triton kernel `kernels-community/finegrained-fp8`, which it
downloads from the hub (transformers/integrations/finegrained_fp8.py, 5.23). The operators in this module have
the same names and arguments as the kernel's, in a namespace without a build number. On real data, they
compute the same result in plain torch: each row is quantized to fp8 with one scale per block of columns, and
products are accumulated in float32.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from fakexport._torch.operators.operator_registry import register_operator

NAMESPACE = "finegrained_fp8"
_ROWS = "w8a8_block_dynamic_fp8_matmul"
_ROWS_STATIC = "w8a8_block_static_fp8_matmul"
_ROWS_TENSOR = "w8a8_tensor_dynamic_fp8_matmul"
_GROUPED = "w8a8_block_dynamic_fp8_matmul_grouped"
_BATCHED = "w8a8_block_dynamic_fp8_matmul_batched"
_LARGEST = torch.finfo(torch.float8_e4m3fn).max
_MX_BLOCK = 32


def register_fp8_products() -> None:
    """Register the operators, with the kernel's names and arguments, and their FLOP formula."""
    rest = "int[] block_size, ScalarType? output_dtype=None) -> Tensor"
    for name, arguments, kernel in (
        (_ROWS, f"(Tensor A, Tensor B, Tensor Bs, {rest}", _rows),
        (_ROWS_STATIC, f"(Tensor A, Tensor B, Tensor Bs, Tensor As, {rest}", _rows_static),
        (
            _ROWS_TENSOR,
            "(Tensor A, Tensor B, Tensor Bs, ScalarType? output_dtype=None) -> Tensor",
            _rows_tensor,
        ),
        (
            _GROUPED,
            f"(Tensor A, Tensor B, Tensor Bs, Tensor offsets, Tensor tokens_per_expert, {rest}",
            _grouped,
        ),
        (_BATCHED, f"(Tensor A, Tensor B, Tensor Bs, Tensor expert_ids, {rest}", _batched),
    ):
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
        weight: `[N, K]`, float8_e4m3fn.
        scales: `[ceil(N / n), ceil(K / k)]`; one element if `block_size`, `[n, k]`, is None.
        activation_scale: One scale for all activations, or None to compute a scale per row and block of
            columns.
    Raises:
        NotImplementedError: The weight has 4 bits, there is one scale per 32 columns (MXFP8), or there are a
            static activation scale and a single scale for the weight. The kernel's `matmul` rejects the last.
    """
    _check(weight, scales)
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
        NotImplementedError: The weight has 4 bits, is MXFP8, or is not quantized in blocks.
    """
    _check(weight, scales, block_size)
    return _call(_GROUPED, given, weight, scales, offsets, tokens_per_expert, block_size)


def batched_matmul(
    given: Tensor, weight: Tensor, scales: Tensor, block_size: list[int] | None, expert_ids: Tensor
) -> Tensor:
    """Like `grouped_matmul`, but `expert_ids` selects the matrix for each row."""
    _check(weight, scales, block_size)
    return _call(_BATCHED, given, weight, scales, expert_ids, block_size)


def on_a_gpu(product: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """Return a wrapper of `product` that raises for CPU tensors, because the kernel does not support them."""

    def refuse_or_call(rows: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        if rows.device.type == "cpu":
            raise NotImplementedError(
                "fp8 layers run on a GPU only: the kernel finegrained-fp8 is written in Triton"
            )
        return product(rows, *args, **kwargs)

    return refuse_or_call


def _check(weight: Tensor, scales: Tensor, block_size: Sequence[int] | None = ()) -> None:
    is_mx = scales.dtype is torch.float8_e8m0fnu and scales.shape[-1:] == (weight.shape[-1] // _MX_BLOCK,)
    if weight.dtype is not torch.float8_e4m3fn or is_mx:
        kind = "MXFP8" if is_mx else f"weights of {weight.dtype}"
        raise NotImplementedError(f"the kernel finegrained-fp8 is not emulated for {kind}")
    if block_size is None:
        raise NotImplementedError(
            "the kernel finegrained-fp8 is not emulated for experts that are not quantized in blocks"
        )


def _empty(
    given: Tensor, weight: Tensor, *rest: Any, output_dtype: torch.dtype | None = None, **more: Any
) -> Tensor:
    """Return an uninitialized result of one of these operators. Raise if the kernel would raise."""
    dtype = output_dtype or next((value for value in rest if isinstance(value, torch.dtype)), given.dtype)
    if not given.is_contiguous() or not weight.is_contiguous():
        raise RuntimeError("the kernel finegrained-fp8 takes contiguous tensors only")
    if given.shape[-1] != weight.shape[-1]:
        raise RuntimeError(f"rows of {given.shape[-1]} do not match a weight of {tuple(weight.shape)}")
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


def _grouped(
    given: Tensor,
    weight: Tensor,
    scales: Tensor,
    offsets: Tensor,
    tokens_per_expert: Tensor,
    block_size: list[int],
    output_dtype: torch.dtype | None = None,
) -> Tensor:
    result = given.new_zeros((given.shape[0], weight.shape[1]), dtype=output_dtype or given.dtype)
    start = 0
    for matrix, own, end in zip(weight, scales, offsets.tolist(), strict=True):
        result[start:end] = _rows(given[start:end], matrix, own, block_size, output_dtype)
        start = end
    return result


def _batched(
    given: Tensor,
    weight: Tensor,
    scales: Tensor,
    expert_ids: Tensor,
    block_size: list[int],
    output_dtype: torch.dtype | None = None,
) -> Tensor:
    result = given.new_zeros((given.shape[0], weight.shape[1]), dtype=output_dtype or given.dtype)
    for index in expert_ids.unique().tolist():
        if index < weight.shape[0]:
            chosen = expert_ids == index
            result[chosen] = _rows(given[chosen], weight[index], scales[index], block_size, output_dtype)
    return result


def _rounded(given: Tensor, block: int) -> Tensor:
    """Round activations to fp8, with one scale per row and block of columns, and return them as float32."""
    columns = given.shape[-1]
    padded = torch.nn.functional.pad(given.float(), (0, -columns % block)).unflatten(-1, (-1, block))
    largest = padded.abs().amax(dim=-1, keepdim=True)
    scale = torch.where(largest > 0, largest / _LARGEST, torch.ones_like(largest))
    rounded = (padded / scale).to(torch.float8_e4m3fn).float() * scale
    result: Tensor = rounded.flatten(-2)[..., :columns]
    return result


def _weight(weight: Tensor, scales: Tensor, block_size: list[int]) -> Tensor:
    """Return the dequantized weight `[N, K]` in float32."""
    rows, columns = block_size
    of_rows = scales.float().repeat_interleave(rows, dim=0)[: weight.shape[0]]
    return weight.float() * of_rows.repeat_interleave(columns, dim=1)[:, : weight.shape[1]]
