"""Keeping fake mode from initializing a device that answers "available" and does not exist.

`FakeTensorMode.avoid_device_init` is derived from `torch.cuda.is_available()`. When that is answered from
a profile, fake mode would allocate for real: `torch.tensor([], device="cuda")`, which every transformers
KV cache runs, dies with "Could not run 'aten::empty_strided' ... 'CUDA'". And each fake tensor would first
make a real one on its device, to initialize it (torch 2.11). Seen on torch 2.11 to 2.13.
"""

from __future__ import annotations

from torch._subclasses import fake_tensor
from torch._subclasses.fake_tensor import FakeTensorMode

from .patching import Patches


def avoid_device_init() -> Patches:
    """Return a context in which every `FakeTensorMode` avoids touching a device."""
    return Patches(
        {
            (FakeTensorMode, "avoid_device_init"): property(lambda mode: True),
            (fake_tensor, "init_gpu_context"): lambda device: None,
        }
    )
