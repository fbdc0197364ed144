"""Fake mode's memory of what an operator gave, which must not outlive the answers it was computed with.

`FakeTensorMode` remembers an operator's result by its arguments, for the whole process. Some results also
depend on what the device answers (`torch.version.hip` decides the shape of flash attention's second
output), so each emulated block has a memory of its own. Seen on torch 2.11 to 2.13.
"""

from __future__ import annotations

from torch._subclasses.fake_tensor import FakeTensorMode

from .patching import Patches


def own_dispatch_cache() -> Patches:
    """Return a context in which fake modes start with an empty memory, and leave the outer one as it was."""
    return Patches({(FakeTensorMode, "cache"): {}})
