"""Seeing every kernel that real and meta tensors run, below autograd and autocast.

`dispatch_observer` sees what one fake mode runs; a fake costs a hundred times what a meta tensor costs.
Seen on torch 2.11 to 2.13.

Source: `torch/utils/_python_dispatch.py:TorchDispatchMode`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Protocol

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from fakexport._torch.operator_registry import HigherOrderOperator


class KernelObserver(Protocol):
    """Called for every kernel."""

    def __call__(
        self, kernel: Any, args: Sequence[Any], kwargs: Mapping[str, Any], run: Callable[..., Any]
    ) -> Any:
        """Return what the caller of the kernel gets: `run(*args, **kwargs)`, as a rule."""


class _Observing(TorchDispatchMode):
    supports_higher_order_operators = True

    def __init__(self, observer: KernelObserver) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._observer = observer
        self.has_compiled = False

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        if not isinstance(func, HigherOrderOperator):
            return self._observer(func, args, kwargs or {}, func)
        self.has_compiled = True
        if func.name() != "cond":
            return func(*args, **(kwargs or {}))
        predicate, if_true, if_false, operands = args
        with self:
            return (if_true if predicate else if_false)(*operands)


@contextmanager
def kernels_observed(observer: KernelObserver) -> Iterator[None]:
    """Enter a context in which `observer` answers for each kernel.

    Those that it runs itself are not observed; of higher-order operators, the branches of `torch.cond` are.
    """
    observing = _Observing(observer)
    try:
        with observing:
            yield
    finally:
        if observing.has_compiled:
            # Such an operator compiles its caller, for this mode: a later export would trace into that code.
            torch.compiler.reset()
