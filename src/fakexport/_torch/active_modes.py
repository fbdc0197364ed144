"""Which fake mode is active on this thread. Seen on torch 2.11 to 2.13."""

from __future__ import annotations

import torch
from torch._subclasses.fake_tensor import FakeTensorMode


def active_fake_mode() -> FakeTensorMode | None:
    """Return the innermost active `FakeTensorMode`, or None. Asked of the dispatcher, as torch's C++ asks."""
    mode = torch._C._get_dispatch_mode(torch._C._TorchDispatchModeKey.FAKE)
    return mode if isinstance(mode, FakeTensorMode) else None
