"""Run `scaled_dot_product_attention` on fake tensors with the backend that their device would select.

The operator is composite. A kernel that is registered for a device's autograd key takes precedence over the
composite kernel. Attention on the CPU is not affected. Seen on torch 2.11 to 2.13.

Source: `aten/src/ATen/native/transformers/attention.cpp:scaled_dot_product_attention`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor
from torch._subclasses.functional_tensor import FunctionalTensor

from fakexport._torch.emulation.attention_backend import Attention, AttentionDevice, choose_backend

_aten = torch.ops.aten
_OPERATOR = _aten.scaled_dot_product_attention.default
# Autograd keys are used because fake tensors have no backend key. Inference mode skips autograd keys, so the
# composite kernel still runs there.
_KEYS = ("AutogradCUDA", "AutogradXPU", "AutogradMPS")


@contextmanager
def virtual_attention(device_of: Callable[[torch.device], AttentionDevice | None]) -> Iterator[None]:
    """Enter a context in which attention on fake tensors uses the backend of their device."""

    def attention(
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attn_mask: Tensor | None = None,
        dropout_p: float = 0.0,
        is_causal: bool = False,
        *,
        scale: float | None = None,
        enable_gqa: bool = False,
    ) -> Tensor:
        known = device_of(query.device) if _is_fake(query) else None
        if known is None:
            return _OPERATOR.decompose(  # type: ignore[no-any-return]
                query, key, value, attn_mask, dropout_p, is_causal, scale=scale, enable_gqa=enable_gqa
            )
        call = Attention(query, key, value, attn_mask, dropout_p, is_causal, known, enable_gqa)
        return _attend(call, scale)

    with torch.library._scoped_library("aten", "IMPL") as library:
        for dispatch_key in _KEYS:
            library.impl("scaled_dot_product_attention", attention, dispatch_key, allow_override=True)
        yield


def _is_fake(tensor: Tensor) -> bool:
    """Return whether a tensor is fake. Functionalization in Inductor wraps it."""
    if isinstance(tensor, FunctionalTensor):
        tensor = torch._from_functional_tensor(tensor.elem)
    return isinstance(tensor, FakeTensor)


def _attend(call: Attention, scale: float | None) -> Tensor:
    q, k, v = call.query, call.key, call.value
    backend = choose_backend(call)
    # All kernels take an additive bias; a boolean mask marks where attention is allowed. For cuDNN, torch
    # before 2.13 adds -65504, so that a row in which all is masked attends to everything (pytorch#177842).
    mask = call.mask
    if mask is not None and mask.dtype is torch.bool:
        mask = torch.zeros_like(mask, dtype=q.dtype).masked_fill_(mask.logical_not(), float("-inf"))
    result: tuple[Any, ...]
    if backend == "math":
        result = _aten._scaled_dot_product_attention_math(
            q, k, v, mask, call.dropout, call.is_causal, None, scale=scale, enable_gqa=call.allows_groups
        )
    elif backend == "flash":
        return _flash(call, scale)
    elif backend == "overrideable":
        result = _aten._scaled_dot_product_fused_attention_overrideable(
            q, k, v, mask, call.dropout, call.is_causal, False, scale=scale
        )
    elif backend == "efficient":
        shape = (q.size(0), q.size(1), q.size(2), k.size(2))
        bias = None if mask is None else mask.expand(shape)
        result = _aten._scaled_dot_product_efficient_attention(
            q, k, v, bias, call.requires_grad, call.dropout, call.is_causal, scale=scale
        )
    else:
        result = _aten._scaled_dot_product_cudnn_attention(
            q, k, v, mask, call.requires_grad, call.dropout, call.is_causal, False, scale=scale
        )
    return result[0]  # type: ignore[no-any-return]


def _flash(call: Attention, scale: float | None) -> Tensor:
    """Call the flash kernel with the head dimension padded to a multiple of 8 and the original scale."""
    head_dim = call.query.size(-1)
    padded = [_padded(tensor) for tensor in (call.query, call.key, call.value)]
    wanted_scale = scale if scale is not None else float(head_dim) ** -0.5
    result = _aten._scaled_dot_product_flash_attention(
        *padded, call.dropout, call.is_causal, False, scale=wanted_scale
    )[0]
    return result if padded[0] is call.query else result[..., :head_dim]  # type: ignore[no-any-return]


def _padded(tensor: Tensor) -> Tensor:
    excess = tensor.size(-1) % 8
    return F.pad(tensor, [0, 8 - excess]) if excess else tensor
