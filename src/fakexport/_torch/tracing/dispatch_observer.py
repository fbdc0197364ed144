"""Observe every operator that a fake mode runs, or every kernel that real and meta tensors run.

To observe a fake mode, no additional dispatch mode is used, because every operator would then pass through
the dispatcher twice. A subclass of `FakeTensorMode` would remain in the exported program. Instead, an
instance attribute of the mode replaces the `dispatch` method while the block runs, and is deleted afterwards.
Seen on torch 2.11 to 2.13.

Source: `torch/_subclasses/fake_tensor.py:FakeTensorMode.__torch_dispatch__`, which calls `self.dispatch`;
`torch/utils/_python_dispatch.py:TorchDispatchMode`.
"""

from __future__ import annotations

import types
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Protocol

import torch
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode

from fakexport._torch.operators.operator_registry import HigherOrderOperator


class Observer(Protocol):
    """A function that is called for each operator that user code runs, but not for operators inside it."""

    def __call__(
        self, run: Callable[..., Any], operator: Any, args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> Any:
        """Return the result that user code gets.

        `run()` returns fake mode's result, and `run(name=value)` the result for a changed keyword argument.
        """


@contextmanager
def observed(mode: FakeTensorMode, observer: Observer) -> Iterator[None]:
    """Enter a context in which `observer` handles the operators of `mode`, instead of any other observer."""
    before = vars(mode).get("dispatch")
    observe(mode, observer)
    try:
        yield
    finally:
        if before is None:
            del vars(mode)["dispatch"]
        else:
            vars(mode)["dispatch"] = before


def observe(mode: FakeTensorMode, observer: Observer) -> None:
    """Let `observer` handle the operators of `mode` from now on."""
    stock = types.MethodType(type(mode).dispatch, mode)
    is_inside = False

    def dispatch(
        func: Any, classes: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        nonlocal is_inside
        kwargs = kwargs or {}
        # A wrapper subclass calls operators on its inner fake tensors, and each of these is observed.
        if is_inside or not all(issubclass(kind, FakeTensor) for kind in classes):
            return stock(func, classes, args, kwargs)
        is_inside = True
        try:
            return observer(
                lambda **changes: stock(func, classes, args, {**kwargs, **changes} if changes else kwargs),
                func,
                args,
                kwargs,
            )
        finally:
            is_inside = False

    vars(mode)["dispatch"] = dispatch


class KernelObserver(Protocol):
    """A function that is called for every kernel."""

    def __call__(
        self, kernel: Any, args: Sequence[Any], kwargs: Mapping[str, Any], run: Callable[..., Any]
    ) -> Any:
        """Return the kernel's result to its caller, usually `run(*args, **kwargs)`."""


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
    """Enter a context in which `observer` handles each kernel of real and meta tensors, below autograd.

    Operators on fake tensors take a hundred times as long as on meta tensors.

    Kernels that the observer itself runs are not observed. Inside higher-order operators, only kernels in the
    branches of `torch.cond` are observed.
    """
    observing = _Observing(observer)
    try:
        with observing:
            yield
    finally:
        if observing.has_compiled:
            # Higher-order operators compile their caller for this mode, and a later export would trace into
            # that code.
            torch.compiler.reset()
