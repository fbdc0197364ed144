"""Count the floating-point operations of one operator call with torch's FLOP formulas.

Composite operators (`aten.matmul`, `aten.einsum`, `aten.conv2d`) run on fake tensors, and the formulas are
applied to the operators that they call, as in `FlopCounterMode`. Sizes may be symbolic. This module adds
formulas for operators that multiply but have no formula in torch. Seen on torch 2.11 to 2.13.

Source: `torch/utils/flop_counter.py`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils.flop_counter import flop_registry

from fakexport._torch.operators.operator_registry import OpOverload
from fakexport._torch.operators.operator_schema import argument_names
from fakexport._torch.pytree import tree_leaves
from fakexport._torch.tracing.dispatch_observer import observed

aten = torch.ops.aten
_Args = Sequence[Any]


@dataclass(frozen=True, slots=True)
class Product:
    """One executed operator that has a FLOP formula.

    Args:
        least: The minimum number of FLOPs that any kernel needs. Attention may skip masked keys, and a
            convolution may use a Winograd or Fourier transform.
    """

    operator: str  # For example `aten.mm.default`.
    device: str  # For example `cpu` or `cuda:0`.
    dtype: torch.dtype  # The narrowest dtype of its tensors, which determines the device's peak throughput.
    flops: Any  # FLOPs according to the formula: a number or a `SymInt`.
    least: Any


def has_formula(operator: Any) -> bool:
    """Return whether torch or this module has a formula for the operator itself."""
    packet = getattr(operator, "overloadpacket", operator)
    return packet in flop_registry or packet in _OWN


def call_products(
    mode: FakeTensorMode, operator: Any, args: Any, kwargs: Mapping[str, Any], result: Any
) -> tuple[Product, ...]:
    """Return the operators with a FLOP formula that one call runs, in execution order.

    Args:
        mode: The mode of the fake tensors. The call may add guards to its `ShapeEnv`; `without_new_guards`
            prevents that.
        args, kwargs, result: Fake tensors, and symbolic numbers for sizes.
    """
    if has_formula(operator) or _is_plain_linear(operator, args):
        return (_product(operator, args, kwargs, result),)
    recorder = _Recorder()
    with torch.no_grad(), mode, observed(mode, recorder):
        operator(*args, **kwargs)
    return tuple(recorder.found)


class _Recorder:
    def __init__(self) -> None:
        self.found: list[Product] = []

    def __call__(
        self, run: Callable[..., Any], operator: Any, args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> Any:
        result = run()
        if has_formula(operator):
            self.found.append(_product(operator, args, kwargs, result))
        return result


def _is_plain_linear(operator: Any, args: _Args) -> bool:
    """Return whether a call is a plain linear layer. This common case is counted without running the call."""
    return (
        operator is aten.linear.default and args[1].dim() == 2 and not torch.is_autocast_enabled(_kind(args))
    )


def _kind(args: _Args) -> str:
    return str(args[0].device.type)


def _product(operator: Any, args: _Args, kwargs: Mapping[str, Any], result: Any) -> Product:
    packet = getattr(operator, "overloadpacket", operator)
    formula = _OWN.get(packet) or flop_registry.get(packet) or _linear
    flops = formula(*args, **kwargs, out_val=result)
    least = flops
    if packet in _LEAST:
        names = argument_names(operator) if isinstance(operator, OpOverload) else ()
        least = _LEAST[packet](flops, {**dict(zip(names, args, strict=False)), **kwargs})
    narrowest = min(_factors((args, dict(kwargs))), key=lambda tensor: tensor.itemsize)
    return Product(str(operator), str(narrowest.device), narrowest.dtype, flops, least)


def _factors(arguments: Any) -> list[torch.Tensor]:
    """Return the tensors that are multiplied: no masks, and not the bias of a matrix product."""
    tensors = [leaf for leaf in tree_leaves(arguments) if isinstance(leaf, torch.Tensor)]
    numbers = [tensor for tensor in tensors if tensor.is_floating_point() or tensor.is_complex()] or tensors
    return [tensor for tensor in numbers if tensor.dim() > 1] or numbers


def _attention(query: torch.Tensor, key: torch.Tensor, *args: Any, out_val: Any, **kwargs: Any) -> Any:
    """Count the FLOPs of queries times keys, and scores times values. Heads may share keys and values."""
    result = out_val[0] if isinstance(out_val, (list, tuple)) else out_val
    return 2 * math.prod(result.shape[:-1]) * key.shape[-2] * (query.shape[-1] + result.shape[-1])


def _linear(
    first: torch.Tensor, weight: torch.Tensor, *args: Any, out_val: torch.Tensor, **kwargs: Any
) -> Any:
    return 2 * out_val.numel() * weight.shape[1]


def _integer_product(first: torch.Tensor, second: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
    return 2 * first.shape[0] * first.shape[1] * second.shape[1]


def _grouped_product(first: torch.Tensor, second: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
    """Count the FLOPs that multiply each row by the matrix of its group."""
    groups = first.shape[0] if first.dim() == second.dim() == 3 else 1
    return 2 * groups * first.shape[-2] * first.shape[-1] * second.shape[-1]


def _least_attention(flops: Any, named: Mapping[str, Any]) -> Any:
    """Return the FLOPs that attention needs if the mask hides as many keys as possible.

    A mask may hide all keys from all queries except one. With `is_causal`, query i attends to the keys up to
    i.

    Source: `aten/src/ATen/native/transformers/attention.cpp`, which aligns the causal mask to the upper left.
    """
    queries, keys = named["query"].shape[-2], named["key"].shape[-2]
    if any(named.get(name) is not None for name in ("attn_mask", "attn_bias")):
        return flops // torch.sym_max(1, queries)
    if not named.get("is_causal"):
        return flops
    both = torch.sym_min(queries, keys)
    seen = both * (both + 1) // 2 + (queries - both) * keys
    return flops // torch.sym_max(1, queries * keys) * seen


def _least_convolution(flops: Any, named: Mapping[str, Any]) -> Any:
    """Count one multiplication per output element and input channel, a lower bound for all algorithms."""
    return flops // max(1, math.prod(named["weight"].shape[2:]))


def _none(flops: Any, named: Mapping[str, Any]) -> Any:
    """Return 0, because how much is computed depends on block masks or sequence lengths at run time."""
    return 0


_OWN: Mapping[Any, Callable[..., Any]] = {
    aten.scaled_dot_product_attention: _attention,
    aten._scaled_dot_product_flash_attention_for_cpu: _attention,
    aten._scaled_dot_product_fused_attention_overrideable: _attention,
    aten._int_mm: _integer_product,
    aten._grouped_mm: _grouped_product,
    aten._scaled_grouped_mm: _grouped_product,
}
"""Operators that multiply but have no formula in torch."""

_LEAST: Mapping[Any, Callable[[Any, Mapping[str, Any]], Any]] = {
    **dict.fromkeys(
        (aten.scaled_dot_product_attention, aten._scaled_dot_product_flash_attention_for_cpu,
         aten._scaled_dot_product_fused_attention_overrideable, aten._scaled_dot_product_flash_attention,
         aten._scaled_dot_product_efficient_attention, aten._scaled_dot_product_cudnn_attention),
        _least_attention,
    ),
    **dict.fromkeys(
        (aten.convolution, aten._convolution, aten.cudnn_convolution, aten.convolution_overrideable,
         aten._slow_conv2d_forward),
        _least_convolution,
    ),
    **dict.fromkeys(
        (aten._flash_attention_forward, aten._efficient_attention_forward,
         torch.ops.higher_order.flex_attention),
        _none,
    ),
}  # fmt: skip
