"""How many floating-point operations one call of an operator takes, by torch's own formulas.

Operators made of others (`aten.matmul`, `aten.einsum`, `aten.conv2d`) are run on fake tensors, and the
formulas are called for those inside, as `FlopCounterMode` does it; sizes may be symbolic. Torch has no
formula for some operators that multiply: those are here. Seen on torch 2.11 to 2.13.

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

from .dispatch_observer import observed
from .operator_registry import OpOverload
from .operator_schema import argument_names
from .pytree import tree_leaves

aten = torch.ops.aten
_Args = Sequence[Any]


@dataclass(frozen=True, slots=True)
class Product:
    """One operator with a formula.

    Args:
        operator: `aten.mm.default`.
        device: `cpu`, `cuda:0`.
        dtype: The narrowest dtype of its tensors, which decides how fast a device can be.
        flops: By the formula; a number or a `SymInt`.
        least: What no kernel does without: attention may skip keys that are masked, and a convolution may be
            computed by a transform (Winograd, Fourier).
    """

    operator: str
    device: str
    dtype: torch.dtype
    flops: Any
    least: Any


def has_formula(operator: Any) -> bool:
    """Return whether one of torch's formulas, or of those here, is for an operator itself."""
    packet = getattr(operator, "overloadpacket", operator)
    return packet in flop_registry or packet in _OWN


def call_products(
    mode: FakeTensorMode, operator: Any, args: Any, kwargs: Mapping[str, Any], result: Any
) -> tuple[Product, ...]:
    """Return the operators with a formula that one call runs, in their order.

    Args:
        mode: The mode of the fakes. Its shape environment may learn; see `without_new_guards`.
        args, kwargs, result: Fakes instead of tensors, symbolic numbers instead of sizes.
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
    """Return whether a call is a linear layer that need not be run: it is in every layer of a large model."""
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
    """Return the tensors that are multiplied: no mask, and no bias where there are matrices."""
    tensors = [leaf for leaf in tree_leaves(arguments) if isinstance(leaf, torch.Tensor)]
    numbers = [tensor for tensor in tensors if tensor.is_floating_point() or tensor.is_complex()] or tensors
    return [tensor for tensor in numbers if tensor.dim() > 1] or numbers


def _attention(query: torch.Tensor, key: torch.Tensor, *args: Any, out_val: Any, **kwargs: Any) -> Any:
    """Scores of every query with every key, and their product with the values; heads may be shared."""
    result = out_val[0] if isinstance(out_val, (list, tuple)) else out_val
    return 2 * math.prod(result.shape[:-1]) * key.shape[-2] * (query.shape[-1] + result.shape[-1])


def _linear(
    first: torch.Tensor, weight: torch.Tensor, *args: Any, out_val: torch.Tensor, **kwargs: Any
) -> Any:
    return 2 * out_val.numel() * weight.shape[1]


def _integer_product(first: torch.Tensor, second: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
    return 2 * first.shape[0] * first.shape[1] * second.shape[1]


def _grouped_product(first: torch.Tensor, second: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
    """Each row is multiplied with the matrix of its group alone."""
    groups = first.shape[0] if first.dim() == second.dim() == 3 else 1
    return 2 * groups * first.shape[-2] * first.shape[-1] * second.shape[-1]


def _least_attention(flops: Any, named: Mapping[str, Any]) -> Any:
    """A mask may hide anything but the keys of one query; with `is_causal` query i sees the keys up to i.

    Source: `aten/src/ATen/native/transformers/attention.cpp`, which masks the upper left.
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
    """One multiplication per output and channel, which transforms come near to."""
    return flops // max(1, math.prod(named["weight"].shape[2:]))


def _none(flops: Any, named: Mapping[str, Any]) -> Any:
    """Data say how much is computed: blocks that are masked, lengths of sequences."""
    return 0


_OWN: Mapping[Any, Callable[..., Any]] = {
    aten.scaled_dot_product_attention: _attention,
    aten._scaled_dot_product_flash_attention_for_cpu: _attention,
    aten._scaled_dot_product_fused_attention_overrideable: _attention,
    aten._int_mm: _integer_product,
    aten._grouped_mm: _grouped_product,
    aten._scaled_grouped_mm: _grouped_product,
}
"""Operators that multiply and have no formula in torch."""

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
