"""Fake mode's memory of what an operator gave, which must not outlive the answers it was computed with.

`FakeTensorMode` remembers an operator's result by its arguments, for the whole process. Some results also
depend on what the device answers (`torch.version.hip` decides the shape of flash attention's second
output), so each emulated block has a memory of its own. Seen on torch 2.11 to 2.13.
"""

from __future__ import annotations

from torch._subclasses.fake_tensor import FakeTensorMode

from .active_modes import active_fake_mode
from .patching import Patches


def own_dispatch_cache() -> Patches:
    """Return a context in which fake modes start with an empty memory, and leave the outer one as it was."""
    return Patches({(FakeTensorMode, "cache"): {}})


def forget_results() -> None:
    """Empty the memory, since another device is the current one: `device="cuda"` is remembered without it."""
    FakeTensorMode.cache.clear()
    mode = active_fake_mode()
    if mode is not None and mode.shape_env is not None:
        mode.shape_env.fake_tensor_cache.clear()
