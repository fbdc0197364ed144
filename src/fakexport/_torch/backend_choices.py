"""Choices of kernels, precisions and default dtypes that are settings of a process, and no operators.

Seen on torch 2.13 and 2.15.

Source: `torch/nn/attention/__init__.py:_sdpa_kernel`, `torch/backends/cuda/__init__.py`,
`torch/backends/cudnn/__init__.py` and `torch/__init__.py:set_float32_matmul_precision`, `set_default_dtype`:
whatever public name is called, one of these functions of C++ is.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import FrameType
from typing import Any

import torch

from .patching import Patches, in_force, outside_of_patches

_SETTERS = tuple(
    name
    for name in (
        *("_set_sdp_use_flash", "_set_sdp_use_mem_efficient", "_set_sdp_use_math", "_set_sdp_use_cudnn"),
        *("_set_sdp_use_overrideable", "_set_sdp_priority_order", "_set_math_sdp_allow_fp16_bf16_reduction"),
        *("_set_float32_matmul_precision", "_set_cublas_allow_tf32", "_set_fp32_precision_setter"),
        "_set_cublas_allow_fp16_reduced_precision_reduction",
        "_set_cublas_allow_bf16_reduced_precision_reduction",
        *("_set_default_dtype", "_set_default_tensor_type", "_set_deterministic_algorithms"),
        *("_set_cudnn_allow_tf32", "_set_cudnn_enabled", "_set_cudnn_benchmark", "_set_cudnn_deterministic"),
    )
    if hasattr(torch._C, name)
)


def backend_choices_watched(seen: Callable[[FrameType | None], None]) -> Patches:
    """Return a context in which `seen` gets the frame of torch that makes each choice."""
    return Patches({(torch._C, name): _told(in_force(torch._C, name), seen) for name in _SETTERS})


def _told(stock: Callable[..., Any], seen: Callable[[FrameType | None], None]) -> Callable[..., Any]:
    def choose(*args: Any, **kwargs: Any) -> Any:
        seen(outside_of_patches(sys._getframe(1)))
        return stock(*args, **kwargs)

    return choose
