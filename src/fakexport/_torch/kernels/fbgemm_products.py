"""fp8 matrix products with row-wise scales, as used by `fbgemm_fp8` checkpoints.

For these products, transformers calls two FBGEMM operators (transformers/integrations/fbgemm_fp8.py, 5.23).
The FBGEMM package needs a CUDA build of torch. If it has not registered the operators, this module registers
operators with the same names and arguments (fbgemm-gpu-genai 1.8). On real data, they compute the same result
in plain torch, on any device.

Source: `fbgemm_gpu/experimental/gen_ai/src/quantize/quantize.cpp` and `quantize.cu`.
"""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from fakexport._torch.operators.operator_registry import register_operator

NAMESPACE = "fbgemm"
QUANTIZED = "fbgemm.quantize_fp8_per_row.default"
PRODUCT = "fbgemm.f8f8bf16_rowwise.default"
_LARGEST = torch.finfo(torch.float8_e4m3fn).max
_SMALLEST_SCALE = 1 / (_LARGEST * 512)


def register_fbgemm_products() -> None:
    """Register the FLOP formula of the matrix product, and the operators if FBGEMM has not done so."""
    register_operator(
        f"{NAMESPACE}::quantize_fp8_per_row",
        "(Tensor input, Tensor? bs=None, Tensor? scale_ub=None, ScalarType? output_dtype=None, "
        "bool stochastic_rounding=False) -> Tensor[]",
        _quantized,
        _empty_quantized,
    )
    register_operator(
        f"{NAMESPACE}::f8f8bf16_rowwise",
        "(Tensor XQ, Tensor WQ, Tensor x_scale, Tensor w_scale, Tensor? bias=None, "
        "bool use_fast_accum=True) -> Tensor",
        _product,
        _empty_product,
        _flops,
    )


def is_fbgemm_installed() -> bool:
    """Return whether the package that registers the operators is installed, without importing it."""
    found = find_spec("fbgemm_gpu")
    folders = () if found is None else found.submodule_search_locations or ()
    return any((Path(folder) / "experimental" / "gen_ai" / "__init__.py").is_file() for folder in folders)


def quantize_on_a_gpu(given: Tensor, *args: Any, **kwargs: Any) -> list[Tensor]:
    """Call the operator that quantizes rows. Raise for CPU tensors, because FBGEMM has no CPU kernel."""
    if given.device.type == "cpu":
        raise NotImplementedError("layers of fbgemm_fp8 run only on a GPU: FBGEMM has no kernels for a CPU")
    result: list[Tensor] = getattr(torch.ops, NAMESPACE).quantize_fp8_per_row(given, *args, **kwargs)
    return result


def composed_quantization(given: Tensor, scale_ub: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """Return rows `[..., M, K]` in float8_e4m3fn and their scales `[..., M]` in float32.

    `scale_ub` is a one-element tensor with an upper bound for the row maximum; larger values are clamped.
    """
    rows = given.float()
    largest = rows.abs().amax(dim=-1, keepdim=True)
    if scale_ub is not None:
        largest = torch.minimum(largest, scale_ub)
    scales = (largest / _LARGEST).clamp(min=_SMALLEST_SCALE)
    quantized = (rows / scales).clamp(-_LARGEST, _LARGEST).to(torch.float8_e4m3fn)
    return quantized, scales.squeeze(-1)


def composed_rowwise_product(
    rows: Tensor, weight: Tensor, scales: Tensor, weight_scales: Tensor, bias: Tensor | None = None
) -> Tensor:
    """Return `rows @ weight.T` in bfloat16, accumulated in float32.

    Rows `[..., M, K]` and weight `[N, K]` are float8_e4m3fn, and their scales `[..., M]` and `[N, 1]` or
    `[N]` are float32.
    """
    product = rows.float() @ weight.float().mT * weight_scales.reshape(-1) * scales.unsqueeze(-1)
    return (product if bias is None else product + bias).to(torch.bfloat16)


def _quantized(
    input: Tensor,
    bs: Tensor | None = None,
    scale_ub: Tensor | None = None,
    output_dtype: torch.dtype | None = None,
    stochastic_rounding: bool = False,
) -> list[Tensor]:
    _check(input, bs, scale_ub, output_dtype, stochastic_rounding)
    return list(composed_quantization(input, scale_ub))


def _empty_quantized(input: Tensor, *args: Any, **kwargs: Any) -> list[Tensor]:
    _check(input, *args, **kwargs)
    scales = input.new_empty(input.shape[:-1], dtype=torch.float32)
    return [input.new_empty(input.shape, dtype=torch.float8_e4m3fn), scales]


def _check(
    given: Tensor,
    bs: Tensor | None = None,
    scale_ub: Tensor | None = None,
    output_dtype: torch.dtype | None = None,
    stochastic_rounding: bool = False,
) -> None:
    if bs is not None or output_dtype not in (None, torch.float8_e4m3fn) or stochastic_rounding:
        raise NotImplementedError("quantize_fp8_per_row is not emulated with these arguments")
    if given.dim() not in (2, 3) or given.dtype not in (torch.bfloat16, torch.float16, torch.float32):
        raise RuntimeError(
            "quantize_fp8_per_row expects a 2-d or 3-d tensor of bfloat16, float16 or float32, got a "
            f"{given.dim()}-d tensor of {given.dtype}"
        )


def _product(
    XQ: Tensor,  # noqa: N803  The names in FBGEMM's schema.
    WQ: Tensor,  # noqa: N803
    x_scale: Tensor,
    w_scale: Tensor,
    bias: Tensor | None = None,
    use_fast_accum: bool = True,
) -> Tensor:
    return composed_rowwise_product(XQ, WQ, x_scale, w_scale, bias)


def _empty_product(
    XQ: Tensor,  # noqa: N803
    WQ: Tensor,  # noqa: N803
    x_scale: Tensor,
    w_scale: Tensor,
    *args: Any,
    **kwargs: Any,
) -> Tensor:
    if {XQ.dtype, WQ.dtype} != {torch.float8_e4m3fn}:
        raise RuntimeError(
            f"f8f8bf16_rowwise expects rows and a weight in float8_e4m3fn, got {XQ.dtype} and {WQ.dtype}"
        )
    is_scaled = x_scale.shape == XQ.shape[:-1] and w_scale.numel() == WQ.shape[0]
    if WQ.dim() != 2 or XQ.shape[-1] != WQ.shape[1] or not is_scaled:
        shapes = ", ".join(str(tuple(tensor.shape)) for tensor in (XQ, WQ, x_scale, w_scale))
        raise RuntimeError(f"rows, weight and their scales do not match: {shapes}")
    if not XQ.is_contiguous() or not WQ.is_contiguous():
        raise RuntimeError("f8f8bf16_rowwise takes contiguous tensors only")
    return XQ.new_empty((*XQ.shape[:-1], WQ.shape[0]), dtype=torch.bfloat16)


def _flops(XQ: Tensor, WQ: Tensor, *args: Any, **kwargs: Any) -> Any:  # noqa: N803
    return 2 * XQ.numel() * WQ.shape[0]
