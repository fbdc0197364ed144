"""How much is transferred from the hub."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

_LOG = logging.getLogger(__name__)
_FOUND: ContextVar[dict[str, int] | None] = ContextVar("_FOUND", default=None)


@contextmanager
def transfers_recorded() -> Iterator[dict[str, int]]:
    """Collect, in the block, the bytes that each repository at its commit transferred.

    Returns:
        Bytes by name, `hf:org/name@commit`; 0 where all was in the cache. Filled while the block runs.
    """
    found: dict[str, int] = {}
    token = _FOUND.set(found)
    try:
        yield found
    finally:
        _FOUND.reset(token)


def record(name: str, nbytes: int) -> None:
    """Add to what a repository transferred."""
    _LOG.debug("%s: %d bytes transferred", name, nbytes)
    found = _FOUND.get()
    if found is not None:
        found[name] = found.get(name, 0) + nbytes
