"""Seeing every kernel that real and meta tensors run, below autograd and autocast.

`dispatch_observer` sees what one fake mode runs; a fake costs a hundred times what a meta tensor costs.
Seen on torch 2.11 to 2.13.

Source: `torch/utils/_python_dispatch.py:TorchDispatchMode`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Protocol

from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes


class KernelObserver(Protocol):
    """Called for every kernel."""

    def __call__(
        self, kernel: Any, args: Sequence[Any], kwargs: Mapping[str, Any], run: Callable[..., Any]
    ) -> Any:
        """Return what the caller of the kernel gets: `run(*args, **kwargs)`, as a rule."""


class _Observing(TorchDispatchMode):
    def __init__(self, observer: KernelObserver) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._observer = observer

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        return self._observer(func, args, kwargs or {}, func)


@contextmanager
def kernels_observed(observer: KernelObserver) -> Iterator[None]:
    """Enter a context in which `observer` answers for each kernel.

    Those that it runs itself are not observed.
    """
    with _Observing(observer):
        yield


@contextmanager
def unobserved() -> Iterator[None]:
    """Enter a context in which no one observes: higher-order operators refuse to run under an observer."""
    with _disable_current_modes():
        yield
