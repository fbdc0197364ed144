"""`x.new_tensor(data)` and `torch.tensor(data, device="cuda")` on a device that is not the first of its type.

Where fake mode may touch no device, torch's C++ takes index 0 for a device whose index it was not told,
"to avoid device init", although that of `x`, or the current one, is known. Seen on torch 2.11 to 2.13.

Source: `torch/csrc/utils/tensor_new.cpp:internal_new_from_data`.
"""

from __future__ import annotations

from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor

from .patching import Patches


def new_tensors_stay() -> Patches:
    """Return a context in which `x.new_tensor(data)` is on the device of `x`."""
    return Patches({(FakeTensor, "new_tensor"): _new_tensor})


def _new_tensor(self: FakeTensor, data: Any, **options: Any) -> torch.Tensor:
    if options.get("device") is None:
        options["device"] = self.device
    return torch.Tensor.new_tensor(self, data, **options)


def on_current_device(kwargs: dict[str, Any]) -> dict[str, Any]:
    """Return the arguments of `torch.tensor` with the current index for a device without one."""
    device = kwargs.get("device")
    named = torch.device(device) if isinstance(device, (str, torch.device)) else None
    if named is None or named.index is not None or named.type not in ("cuda", "xpu"):
        return kwargs
    current = getattr(torch, named.type).current_device()
    return {**kwargs, "device": torch.device(named.type, current)} if current else kwargs
