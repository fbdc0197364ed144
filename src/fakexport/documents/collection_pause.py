"""No cyclic garbage collection while many objects are made at once."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager

__all__ = ["collection_paused"]


@contextmanager
def collection_paused() -> Iterator[None]:
    """Puts off the collector in the block, which makes objects by the million and drops none of them.

    Each full collection walks every object of torch and transformers, some 0.5 s; a document of a large
    program would trigger several. `json.loads` of such a document gains ten-fold as well.
    """
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()
