"""Which dtypes oneDNN computes on this processor: the test that torch's convolutions and LSTMs make.

Seen on torch 2.11 to 2.13. Source: `aten/src/ATen/native/mkldnn/Utils.h:mkldnn_bf16_device_check`.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping

import torch

_CHECKS: Mapping[torch.dtype, str] = {
    torch.bfloat16: "_is_mkldnn_bf16_supported",
    torch.float16: "_is_mkldnn_fp16_supported",
}


@functools.cache
def is_computed_by_onednn(dtype: torch.dtype) -> bool | None:
    """Return whether oneDNN computes in a dtype on this processor; None if torch does not tell."""
    if dtype is torch.float32:
        return bool(torch.backends.mkldnn.is_available())
    if dtype not in _CHECKS or not torch.backends.mkldnn.is_available():
        return False
    check = getattr(torch.ops.mkldnn, _CHECKS[dtype], None)
    return None if check is None else bool(check())
