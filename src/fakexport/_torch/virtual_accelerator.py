"""Integers as devices: `torch.device(1)`, `x.to(1)`, `module.cuda(1)`.

C++ reads an integer as a device of the accelerator that this build of torch has, and a CPU-only wheel answers
"Cannot access accelerator device when none is available.". Seen on torch 2.11 to 2.13.

Source: `torch/csrc/utils/python_arg_parser.h:toDevice`; `aten/src/ATen/DeviceAccelerator.cpp`.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext

import torch

from .accelerator_hooks import only_accelerator
from .virtual_guard import has_streams


def virtual_accelerator(device_type: str) -> AbstractContextManager[None]:
    """Return a context in which an integer is a device of this type, if guards have streams."""
    built_for = torch._C._accelerator_getAccelerator()
    is_that_already = built_for is not None and built_for.type == device_type
    return nullcontext() if is_that_already or not has_streams() else only_accelerator(device_type)
