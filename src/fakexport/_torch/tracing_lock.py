"""A lock for tracing: torch traces with flags, caches and a default dtype that are global to the process.

In torch, two concurrent `torch.export.export` calls fail with "pop empty mode stack". Even a single call
fails with "Expected ProxyTorchDispatchMode" if another thread converts a real tensor to a fake one at the
wrong moment, because all threads share the stack of pre-dispatch modes. Seen on torch 2.11 to 2.13.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")
_lock = threading.RLock()


def one_at_a_time(function: Callable[P, T]) -> Callable[P, T]:
    """Decorate a function so that only one thread at a time runs it. The lock is reentrant."""

    @functools.wraps(function)
    def waits(*args: P.args, **kwargs: P.kwargs) -> T:
        with _lock:
            return function(*args, **kwargs)

    return waits


@contextmanager
def no_trace_running() -> Iterator[None]:
    """Hold the tracing lock in this block, so that a fork in the block does not copy a running trace."""
    with _lock:
        yield
