"""Grouped products with MXFP4 matrices, as used by the experts of gpt-oss checkpoints.

An MXFP4 number has 4 bits: a sign bit, two exponent bits and one mantissa bit. A byte stores two numbers, the
first in the lower half. 32 consecutive numbers share a scale: a power of two, stored as its exponent plus
127. transformers uses Triton kernels from the hub, `kernels-community/gpt-oss-triton-kernels`
(transformers/integrations/mxfp4.py, 5.23). They are not registered with torch, so the operator in this module
has a name of its own. On real data, it dequantizes the matrix of each group and multiplies in the dtype of
the rows.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from fakexport._torch.operators.operator_registry import register_operator

from .grouped_products import composed_product

NAMESPACE = "mxfp4"
PACKED = "mxfp4.grouped_mm.default"
BLOCK = 32
_BIAS = 127


def register_mxfp4_product() -> None:
    """Register the operator and its FLOP formula."""
    schema = "(Tensor rows, Tensor blocks, Tensor scales, Tensor offs) -> Tensor"
    register_operator(f"{NAMESPACE}::grouped_mm", schema, _product, _empty, _flops)


def grouped_matmul(rows: Tensor, blocks: Tensor, scales: Tensor, offs: Tensor) -> Tensor:
    """Return the product of each row with the transposed matrix of its group, `[S, N]`.

    The rows `[S, K]` are sorted by group. The blocks `[G, N, K / 32, 16]` and scales `[G, N, K / 32]` are
    uint8. `offs` is the end of each group's rows. Rows of the result beyond the last group are zeros.
    """
    result: Tensor = getattr(torch.ops, NAMESPACE).grouped_mm(rows, blocks, scales, offs)
    return result


def refuse_cpu(rows: Tensor) -> None:
    """Raise NotImplementedError for a tensor on the CPU, which the kernels do not support."""
    if rows.device.type == "cpu":
        raise NotImplementedError(
            "experts in MXFP4 run only on a GPU; for a CPU, transformers dequantizes them"
        )


def dequantized(blocks: Tensor, scales: Tensor, dtype: torch.dtype) -> Tensor:
    """Return matrices `[..., N, K]` from blocks `[..., N, K / 32, 16]` and scales `[..., N, K / 32]`."""
    # Use half the scale and twice the number, because the greatest scale overflows float32.
    powers = torch.pow(2.0, scales.to(torch.int32) - _BIAS - 1)
    return (2 * unpacked(blocks) * powers.unsqueeze(-1)).to(dtype).flatten(-2)


def unpacked(codes: Tensor) -> Tensor:
    """Return the two 4-bit numbers of each byte, `[..., 2 * K]` in float32 from `[..., K]` in uint8."""
    pairs = torch.stack((codes % 16, codes // 16), dim=-1).flatten(-2).to(torch.int32)
    exponent, mantissa, sign = pairs // 2 % 4, pairs % 2, 1.0 - 2.0 * (pairs // 8)
    # As in IEEE 754, exponent 0 is subnormal: the smallest exponent, 1, without the implicit leading bit.
    return sign * (mantissa + 2 * exponent.clamp(max=1)) * torch.pow(2.0, exponent.clamp(min=1) - 2)


def composed_packed_product(rows: Tensor, blocks: Tensor, scales: Tensor, offs: Tensor) -> Tensor:
    """Return the product using only operators that every runtime has. See `composed_product`."""
    return composed_product(rows, dequantized(blocks, scales, rows.dtype).mT, offs)


def _product(rows: Tensor, blocks: Tensor, scales: Tensor, offs: Tensor) -> Tensor:
    result = rows.new_zeros(rows.shape[0], blocks.shape[1])
    start = 0
    for matrix, own, end in zip(blocks, scales, offs.tolist(), strict=True):
        if start < end:
            result[start:end] = rows[start:end] @ dequantized(matrix, own, rows.dtype).mT
        start = end
    return result


def _empty(rows: Tensor, blocks: Tensor, scales: Tensor, offs: Tensor) -> Tensor:
    groups, columns, count, width = blocks.shape
    if blocks.dtype is not torch.uint8 or scales.dtype is not torch.uint8 or not rows.is_floating_point():
        raise RuntimeError(
            f"MXFP4 needs blocks and scales in uint8, not {blocks.dtype} and {scales.dtype}, and rows in a "
            f"floating-point dtype, not {rows.dtype}"
        )
    if width * 2 != BLOCK or scales.shape != blocks.shape[:-1] or offs.shape != (groups,):
        raise RuntimeError(
            f"the shapes of MXFP4 blocks {tuple(blocks.shape)}, scales {tuple(scales.shape)} and offsets "
            f"{tuple(offs.shape)} do not match"
        )
    if rows.shape[-1] != count * BLOCK:
        raise RuntimeError(f"rows of length {rows.shape[-1]} do not match {count} blocks of length {BLOCK}")
    return rows.new_empty(rows.shape[0], columns)


def _flops(rows: Tensor, blocks: Tensor, *args: Any, **kwargs: Any) -> Any:
    return 2 * rows.shape[0] * rows.shape[1] * blocks.shape[1]
