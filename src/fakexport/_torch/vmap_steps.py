"""The functions that `torch.vmap` leaves in a program, and the levels that they open and close.

`vmap` is no operator: a program has a function that opens a level, one that makes a batched tensor of a
tensor, the operators of what is mapped, and then the two the other way round. Levels are a stack of the
thread. A batched tensor is a plain `Tensor` to Python, whatever it wraps, and shows the sizes of one element.

Seen on torch 2.11 to 2.13. Source: `torch/_functorch/predispatch.py`; `torch/_export/verifier.py`.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch._functorch import predispatch

__all__ = ["VMAP_LEVEL_STEPS", "vmap_levels_closed"]

VMAP_LEVEL_STEPS = frozenset(
    {
        predispatch._vmap_increment_nesting,
        predispatch._vmap_decrement_nesting,
        predispatch.lazy_load_decompositions,
    }
)
"""Those that give no tensor: what follows them runs on the levels that they open and close."""


@contextmanager
def vmap_levels_closed() -> Iterator[None]:
    """The context after which the levels are closed that were opened inside, however it was left."""
    before = torch._C._functorch.maybe_current_level() or 0
    try:
        yield
    finally:
        while (torch._C._functorch.maybe_current_level() or 0) > before:
            torch._C._functorch._vmap_decrement_nesting()
