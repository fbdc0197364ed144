"""Backward passes over fake tensors on a virtual device.

The autograd engine asks which accelerator this build of torch has before it adds gradients on one, and a
CPU-only wheel answers "Cannot access accelerator device when none is available.". While a backward pass
runs under emulation, the answer is the topology's. Seen on torch 2.11 to 2.13.

Source: `torch/csrc/autograd/input_buffer.cpp:InputBuffer::add`; `aten/src/ATen/DeviceAccelerator.cpp`.
"""

from __future__ import annotations

import functools
from typing import Any

import torch
import torch.autograd.graph

from .accelerator_hooks import only_accelerator
from .patching import Patches, original_of
from .virtual_guard import missing_streams


def virtual_backward(device_type: str) -> Patches:
    """Return a context in which `torch.autograd` runs backward passes over fakes of this device type.

    Where guards have no streams (macOS), stock's error remains, and says why.
    """
    stock = original_of(torch.autograd.graph, "_engine_run_backward")

    @functools.wraps(stock)
    def run_backward(*args: Any, **kwargs: Any) -> Any:
        if (reason := missing_streams()) is not None:
            try:
                return stock(*args, **kwargs)
            except RuntimeError as error:
                raise RuntimeError(f"{error} ({reason})") from error
        # In this thread: the engine has no thread for a device that does not exist.
        with only_accelerator(device_type), torch.autograd.set_multithreading_enabled(False):
            return stock(*args, **kwargs)

    return Patches(
        {
            (torch.autograd.graph, "_engine_run_backward"): run_backward,
            (torch.autograd, "_engine_run_backward"): run_backward,
        }
    )
