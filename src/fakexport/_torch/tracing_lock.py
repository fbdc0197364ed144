"""One model at a time: torch traces with flags, caches and a default dtype that are one per process.

Two stock `torch.export.export` calls in two threads fail with "pop empty mode stack"; and one fails with
"Expected ProxyTorchDispatchMode" where another thread makes a fake tensor of a real one at the wrong moment,
since the modes before dispatch are one stack for all. Seen on torch 2.11 to 2.13.
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
    """Let other threads wait while the function runs in one; that one may call it again inside."""

    @functools.wraps(function)
    def waits(*args: P.args, **kwargs: P.kwargs) -> T:
        with _lock:
            return function(*args, **kwargs)

    return waits


@contextmanager
def no_trace_running() -> Iterator[None]:
    """Wait until no other thread traces, and keep it so in the block: a fork in it copies no trace."""
    with _lock:
        yield
