"""Choose the attention backend of a device that this machine does not have.

`scaled_dot_product_attention` selects a backend by device capability. Backends return outputs with
different strides. Whether a following `transpose` or `contiguous` copies depends on the strides, so the
choice is visible in the exported program. A CPU-only build cannot select a backend for CUDA and uses the math
backend. A CUDA build without a driver raises "Found no NVIDIA driver". For xpu and mps, an internal assert
fails. This module selects the backend by the capability in the device profile, with the rules of the
installed torch. It selects each backend as often as torch 2.11 does in 18,000 calls on an H200
(docs/fidelity.md). Which rules later releases added or changed was read from their source, and from the
functions and constants in their wheels.

Source: `aten/src/ATen/native/transformers/cuda/sdp_utils.cpp:select_sdp_backend`,
`aten/src/ATen/native/transformers/sdp_utils_cpp.h`, `aten/src/ATen/native/mkldnn/xpu/Attention.cpp`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor
from torch.fx.experimental.symbolic_shapes import guard_or_false, guard_or_true, statically_known_true

Backend = Literal["cudnn", "flash", "efficient", "overrideable", "math"]

_HALVES = (torch.float16, torch.bfloat16)
_LARGEST_GRID = 65535
_LARGEST_XPU_HEAD = 576
_RELEASE = tuple(int(number) for number in str(torch.__version__).split(".")[:2])


@dataclass(frozen=True)
class AttentionDevice:
    """The device properties that the selection depends on."""

    type: str  # `cuda`, `xpu` or `mps`.
    capability: tuple[int, int] = (0, 0)  # `(major, minor)` of a CUDA device, otherwise `(0, 0)`.
    is_rocm: bool = False  # Whether it is a ROCm device, which has no cuDNN.


@dataclass(frozen=True)
class Attention:
    """The arguments and the device of one attention call."""

    query: Tensor  # The shape of query, key and value is `[batch, heads, length, head_dim]`.
    key: Tensor
    value: Tensor
    mask: Tensor | None
    dropout: float
    is_causal: bool
    device: AttentionDevice  # Device of the query.
    allows_groups: bool  # `enable_gqa`: several query heads may share one key and value head.

    @property
    def requires_grad(self) -> bool:
        tensors = (self.query, self.key, self.value)
        return torch.is_grad_enabled() and any(tensor.requires_grad for tensor in tensors)


def choose_backend(call: Attention) -> Backend:
    """Return the first backend, in the device's order of preference, that supports the call.

    Honors `torch.nn.attention.sdpa_kernel` and `torch.backends.cuda.enable_*_sdp`.
    """
    if call.device.type == "xpu":
        return "overrideable" if _can_use_overrideable(call) else "math"
    if call.device.type != "cuda":
        return "math"
    candidates: list[tuple[Backend, bool]] = [
        ("flash", _can_use_flash(call)),
        ("efficient", _can_use_efficient(call)),
        ("math", torch.backends.cuda.math_sdp_enabled()),
        ("cudnn", _can_use_cudnn(call)),
    ]
    if call.device.capability[0] in (9, 10) and not call.device.is_rocm:
        candidates.insert(0, candidates.pop())  # Since torch 2.11, Hopper and Blackwell prefer cuDNN.
    return next((backend for backend, is_usable in candidates if is_usable), "math")


def attention_answers(
    device_of: Callable[[torch.device], AttentionDevice],
) -> dict[tuple[Any, str], Callable[..., bool]]:
    """Return replacements for queries such as `torch.backends.cuda.can_use_flash_attention(params)`."""

    def answering(is_usable: Callable[[Attention], bool]) -> Callable[..., bool]:
        def answer(params: Any, debug: bool = False) -> bool:
            tensors = (params.query, params.key, params.value)
            if any(tensor.device.type != "cuda" for tensor in tensors):
                return False
            device = device_of(params.query.device)
            mask, dropout, is_causal = params.attn_mask, params.dropout, params.is_causal
            return bool(is_usable(Attention(*tensors, mask, dropout, is_causal, device, params.enable_gqa)))

        return answer

    return {
        (torch._C, "_can_use_flash_attention"): answering(_can_use_flash),
        (torch._C, "_can_use_mem_efficient_attention"): answering(_can_use_efficient),
        (torch._C, "_can_use_cudnn_attention"): answering(_can_use_cudnn),
    }


def _can_use_overrideable(call: Attention) -> bool:
    """Return whether Intel's oneDNN kernel, which is for inference only, supports the call."""
    return (
        torch.backends.cuda.flash_sdp_enabled()
        and _is_dense_4d(call)
        and not call.requires_grad
        and call.dropout == 0.0
        and _has_dtype(call, *_HALVES, torch.float32)
        and guard_or_false(call.query.size(-1) == call.key.size(-1))
        and all(guard_or_false(one.size(-1) <= _LARGEST_XPU_HEAD) for one in (call.query, call.value))
        and _has_matching_heads(call, allows_groups=call.allows_groups)
        and _has_lengths(call)
        and _has_unit_stride(call, ignores_one_element=False)
        and _has_broadcastable_mask(call)
    )


def _can_use_cudnn(call: Attention) -> bool:
    d_qk, d_v = call.query.size(-1), call.value.size(-1)
    return (
        torch.backends.cuda.cudnn_sdp_enabled()
        and not call.device.is_rocm
        and (8, 0) <= call.device.capability <= (12, 1)
        and _is_dense_4d(call)
        and _has_dtype(call, *_HALVES)
        and not torch.are_deterministic_algorithms_enabled()
        and (_RELEASE < (2, 12) or (call.dropout * 16).is_integer())
        and _has_broadcastable_mask(call)
        and _has_lengths(call)
        and _has_unit_stride(call, ignores_one_element=True)
        and _has_matching_heads(call, allows_groups=call.allows_groups, needs_equal_kv=False)
        and (_RELEASE < (2, 13) or _fits_grid(call))
        and _fits_cudnn_head(call, d_qk, d_v)
        and guard_or_false(call.key.size(2) != 1)
        and (call.dropout == 0.0 or guard_or_false(call.query.size(2) != 1))
    )


def _fits_cudnn_head(call: Attention, d_qk: int, d_v: int) -> bool:
    heads, limit = (d_qk, d_v), 128
    is_hopper, is_blackwell = call.device.capability == (9, 0), call.device.capability[0] == 10
    if is_hopper and _RELEASE < (2, 14):
        limit = 256
    elif is_hopper or is_blackwell:
        # Since torch 2.14, heads up to 256. A gradient has them only for 256, and for 192 with 128.
        any_head = _RELEASE >= (2, 14) and not call.requires_grad
        if any_head or (_RELEASE >= (2, 14) and all(guard_or_false(size == 256) for size in heads)):
            limit = 256
        elif guard_or_false(d_qk == 192) and guard_or_false(d_v == 128):
            limit = 192
    return all(guard_or_false(size <= limit) and guard_or_false(size % 8 == 0) for size in heads)


def _fits_grid(call: Attention) -> bool:
    return all(guard_or_false(size <= _LARGEST_GRID) for size in call.query.shape[:2])


def _can_use_flash(call: Attention) -> bool:
    head_dim = call.query.size(-1)
    return (
        torch.backends.cuda.flash_sdp_enabled()
        and _is_dense_4d(call)
        and call.mask is None
        and guard_or_false(head_dim == call.key.size(-1))
        and guard_or_false(head_dim == call.value.size(-1))
        and guard_or_false(head_dim <= (512 if call.device.is_rocm else 256))
        and (call.device.is_rocm or (8, 0) <= call.device.capability <= (12, 1))
        and _can_train_flash(call)
        and (not call.is_causal or guard_or_false(call.query.size(-2) == call.key.size(-2)))
        and _has_dtype(call, *(_HALVES if call.device.capability >= (8, 0) else (torch.float16,)))
        and _has_matching_heads(call, allows_groups=call.allows_groups)
        and _has_lengths(call)
        and _has_unit_stride(call, ignores_one_element=True)
        and (_RELEASE < (2, 15) or _fits_grid(call))
    )


def _can_train_flash(call: Attention) -> bool:
    is_small = (8, 6) <= call.device.capability <= (8, 9) or (12, 0) <= call.device.capability <= (12, 1)
    if call.device.is_rocm or not is_small or not call.requires_grad:
        return True
    head_dim = call.query.size(-1)
    return guard_or_false(head_dim <= 192) or (call.dropout == 0.0 and guard_or_false(head_dim > 224))


def _can_use_efficient(call: Attention) -> bool:
    d_qk, d_v = call.query.size(-1), call.value.size(-1)
    alignment = _gemm_alignment(call)
    dtypes = (torch.float16, torch.float32, torch.bfloat16)
    has_groups = _RELEASE >= (2, 14) and not call.device.is_rocm
    return (
        torch.backends.cuda.mem_efficient_sdp_enabled()
        and (5, 0) <= call.device.capability <= (12, 1)
        and _is_dense_4d(call)
        and guard_or_false(d_qk == call.key.size(-1))
        and all(guard_or_false(size % alignment == 0) and guard_or_false(size > 0) for size in (d_qk, d_v))
        and _has_lengths(call)
        and _has_unit_stride(call, ignores_one_element=False)
        and (_RELEASE < (2, 13) or _is_aligned(call))
        and _has_matching_heads(
            call, allows_groups=call.allows_groups and has_groups, allows_one_head=has_groups
        )
        and _has_dtype(
            call, *(dtypes if call.device.is_rocm or call.device.capability >= (8, 0) else dtypes[:2])
        )
    )


def _gemm_alignment(call: Attention) -> int:
    is_half = call.query.dtype in _HALVES
    if call.device.is_rocm:
        return 8 if is_half else 4
    has_tensor_cores = call.device.capability >= (8, 0) or (call.device.capability >= (7, 0) and is_half)
    smallest = 4 if call.device.capability >= (8, 0) else 1
    return max(smallest, 128 // (16 if is_half else 32)) if has_tensor_cores else smallest


def _is_aligned(call: Attention) -> bool:
    """Return whether the first elements of query, key and value are aligned in memory for the kernel."""
    if call.device.is_rocm or call.device.capability < (8, 0):
        return True
    alignment = _gemm_alignment(call)
    return all(
        guard_or_false(tensor.numel() == 0) or guard_or_true(tensor.storage_offset() % alignment == 0)
        for tensor in (call.query, call.key, call.value)
    )


def _is_dense_4d(call: Attention) -> bool:
    return all(t.dim() == 4 and not t.is_nested for t in (call.query, call.key, call.value))


def _has_dtype(call: Attention, *dtypes: torch.dtype) -> bool:
    return call.query.dtype == call.key.dtype == call.value.dtype and call.query.dtype in dtypes


def _has_lengths(call: Attention) -> bool:
    return not any(guard_or_false(tensor.size(2) == 0) for tensor in (call.query, call.key))


def _has_unit_stride(call: Attention, *, ignores_one_element: bool) -> bool:
    def is_unit(tensor: Tensor) -> bool:
        is_single = ignores_one_element and guard_or_false(tensor.size(-1) == 1)
        return guard_or_false(tensor.stride(-1) == 1) or is_single

    has_unit_mask = call.mask is None or guard_or_false(call.mask.stride(-1) == 1)
    return has_unit_mask and all(is_unit(tensor) for tensor in (call.query, call.key, call.value))


def _has_matching_heads(
    call: Attention, *, allows_groups: bool, needs_equal_kv: bool = True, allows_one_head: bool = True
) -> bool:
    q, k, v = (tensor.size(1) for tensor in (call.query, call.key, call.value))
    has_one_batch = guard_or_false(call.query.size(0) == call.key.size(0)) and guard_or_false(
        call.query.size(0) == call.value.size(0)
    )
    is_same = guard_or_false(q == k) and guard_or_false(q == v)
    is_grouped = (
        allows_groups
        and (not needs_equal_kv or guard_or_false(k == v))
        and guard_or_false(q % k == 0)
        and guard_or_false(q % v == 0)
    )
    # Since torch 2.14, one head of key and value serves all heads of the query, also without `enable_gqa`.
    is_shared = _RELEASE >= (2, 14) and allows_one_head and guard_or_false(k == 1) and guard_or_false(v == 1)
    return has_one_batch and (is_same or is_shared or is_grouped)


def _has_broadcastable_mask(call: Attention) -> bool:
    """Return whether the mask can be broadcast to the shape of the attention scores, as cuDNN requires."""
    if call.mask is None:
        return True
    if call.mask.requires_grad or call.mask.dim() not in (2, 4):
        return False
    wanted = (*call.query.shape[:2], call.query.size(2), call.key.size(2))[-call.mask.dim() :]
    return all(
        statically_known_true(size == target) or statically_known_true(size == 1)
        for size, target in zip(call.mask.shape, wanted, strict=True)
    )
