"""Products with fp8 matrices that have a scale for each block: what fp8 checkpoints like DeepSeek's compute.

transformers calls a Triton kernel for them that it fetches from the hub, `kernels-community/finegrained-fp8`
(transformers/integrations/finegrained_fp8.py, 5.23). The operators here have the names and arguments of that
kernel's, in a namespace without the number of a build. On data they compute the same in plain torch: rows are
quantized to fp8, each with a scale for each block of columns, and products are accumulated in float32.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.utils.flop_counter import register_flop_formula

NAMESPACE = "finegrained_fp8"
_ROWS = "w8a8_block_dynamic_fp8_matmul"
_ROWS_STATIC = "w8a8_block_static_fp8_matmul"
_ROWS_TENSOR = "w8a8_tensor_dynamic_fp8_matmul"
_GROUPED = "w8a8_block_dynamic_fp8_matmul_grouped"
_BATCHED = "w8a8_block_dynamic_fp8_matmul_batched"
_LARGEST = torch.finfo(torch.float8_e4m3fn).max
_MX_BLOCK = 32
_registered: list[Any] = []


def register_fp8_products() -> None:
    """Register the operators and their formula of floating-point operations, once in a process."""
    if _registered:
        return
    blocks, dtype = "int[] block_size", "ScalarType? output_dtype=None"
    for name, schema, kernel in (
        (_ROWS, f"(Tensor A, Tensor B, Tensor Bs, {blocks}, {dtype}) -> Tensor", _rows),
        (
            _ROWS_STATIC,
            f"(Tensor A, Tensor B, Tensor Bs, Tensor As, {blocks}, {dtype}) -> Tensor",
            _rows_static,
        ),
        (_ROWS_TENSOR, f"(Tensor A, Tensor B, Tensor Bs, {dtype}) -> Tensor", _rows_tensor),
        (
            _GROUPED,
            f"(Tensor A, Tensor B, Tensor Bs, Tensor offsets, Tensor tokens_per_expert, {blocks}, {dtype})"
            " -> Tensor",
            _grouped,
        ),
        (
            _BATCHED,
            f"(Tensor A, Tensor B, Tensor Bs, Tensor expert_ids, {blocks}, {dtype}) -> Tensor",
            _batched,
        ),
    ):
        operator = torch.library.custom_op(f"{NAMESPACE}::{name}", kernel, mutates_args=(), schema=schema)
        operator.register_fake(_empty)
        _registered.append(operator)
        register_flop_formula(getattr(getattr(torch.ops, NAMESPACE), name), get_raw=True)(_flops)


def matmul(
    given: Tensor,
    weight: Tensor,
    scales: Tensor,
    block_size: list[int] | None,
    output_dtype: torch.dtype | None = None,
    activation_scale: Tensor | None = None,
) -> Tensor:
    """Return `given @ weight.T` by the operator that the kernel takes for these scales.

    Args:
        given: Activations `[..., K]`, bfloat16, float16 or float32.
        weight: Weight `[N, K]`, float8_e4m3fn.
        scales: Its scales `[ceil(N / n), ceil(K / k)]`; of one element where `block_size` is None.
        block_size: `[n, k]`.
        output_dtype: Default: that of `given`.
        activation_scale: One number for all activations; None: computed for each row and block of columns.
    Returns:
        `[..., N]`.
    Raises:
        NotImplementedError: weights of 4 bits, scales for 32 columns each (MXFP8), or a scale for all
            activations where a weight has one scale too: the kernel refuses these (its `matmul`).
    """
    _check(weight, scales)
    operators = getattr(torch.ops, NAMESPACE)
    has_blocks = block_size is not None and list(block_size) != list(weight.shape)
    result: Tensor
    if activation_scale is not None:
        if not has_blocks:
            raise NotImplementedError(
                "the kernel finegrained-fp8 refuses static activation scales with one scale for a weight: "
                'write "dequantize": true into the quantization_config to check the unquantized model'
            )
        result = getattr(operators, _ROWS_STATIC)(
            given, weight, scales, activation_scale, block_size, output_dtype
        )
    elif not has_blocks:
        result = getattr(operators, _ROWS_TENSOR)(given, weight, scales, output_dtype)
    else:
        result = getattr(operators, _ROWS)(given, weight, scales, block_size, output_dtype)
    return result


def grouped_matmul(
    given: Tensor,
    weight: Tensor,
    scales: Tensor,
    offsets: Tensor,
    tokens_per_expert: Tensor,
    block_size: list[int] | None,
) -> Tensor:
    """Return the product of each row with the matrix of its group.

    Args:
        given: `[S, K]`, sorted by group.
        weight: `[E, N, K]`, float8_e4m3fn.
        scales: `[E, N / n, K / k]`.
        offsets: `[E]`: where the rows of each group end.
        tokens_per_expert: `[E]`.
        block_size: `[n, k]`.
    Raises:
        NotImplementedError: as for `matmul`, or no blocks.
    """
    _check(weight, scales)
    _check_blocks(block_size)
    operator = getattr(getattr(torch.ops, NAMESPACE), _GROUPED)
    result: Tensor = operator(given, weight, scales, offsets, tokens_per_expert, block_size)
    return result


def batched_matmul(
    given: Tensor, weight: Tensor, scales: Tensor, block_size: list[int] | None, expert_ids: Tensor
) -> Tensor:
    """Return the product of each row with the matrix that `expert_ids`, `[S]`, names.

    The other arguments and the errors are those of `grouped_matmul`.
    """
    _check(weight, scales)
    _check_blocks(block_size)
    operator = getattr(getattr(torch.ops, NAMESPACE), _BATCHED)
    result: Tensor = operator(given, weight, scales, expert_ids, block_size)
    return result


def on_a_gpu(product: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """Return a product that refuses what the kernel cannot take: tensors on the CPU."""

    def refuse_or_call(rows: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        if rows.device.type == "cpu":
            raise NotImplementedError(
                "fp8 layers run on a GPU only: the kernel finegrained-fp8 is written in Triton"
            )
        return product(rows, *args, **kwargs)

    return refuse_or_call


def _check(weight: Tensor, scales: Tensor) -> None:
    is_mx = scales.dtype is torch.float8_e8m0fnu and scales.shape[-1:] == (weight.shape[-1] // _MX_BLOCK,)
    if weight.dtype is not torch.float8_e4m3fn or is_mx:
        kind = "MXFP8" if is_mx else f"weights of {weight.dtype}"
        raise NotImplementedError(f"the kernel finegrained-fp8 is not emulated for {kind}")


def _check_blocks(block_size: list[int] | None) -> None:
    if block_size is None:
        raise NotImplementedError("the kernel finegrained-fp8 is not emulated for experts without blocks")


def _empty(
    given: Tensor, weight: Tensor, *rest: Any, output_dtype: torch.dtype | None = None, **more: Any
) -> Tensor:
    """Return what each of the operators returns, without data; where the kernel would refuse, refuse."""
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
    """Return the activations as fp8 has them, in float32; each row has a scale for each block of columns."""
    columns = given.shape[-1]
    padded = torch.nn.functional.pad(given.float(), (0, -columns % block)).unflatten(-1, (-1, block))
    largest = padded.abs().amax(dim=-1, keepdim=True)
    scale = torch.where(largest > 0, largest / _LARGEST, torch.ones_like(largest))
    rounded = (padded / scale).to(torch.float8_e4m3fn).float() * scale
    result: Tensor = rounded.flatten(-2)[..., :columns]
    return result


def _weight(weight: Tensor, scales: Tensor, block_size: list[int]) -> Tensor:
    """Return the weight `[N, K]` in float32."""
    rows, columns = block_size
    of_rows = scales.float().repeat_interleave(rows, dim=0)[: weight.shape[0]]
    return weight.float() * of_rows.repeat_interleave(columns, dim=1)[:, : weight.shape[1]]
