"""Seeing every operator that a fake mode runs, without another mode on the dispatch stack.

A mode on top would cost a second trip through the dispatcher per operator, and a subclass of
`FakeTensorMode` would stay behind in the exported program. An attribute of the mode's instance shadows
its method while the block runs; afterwards the mode is a stock one. Seen on torch 2.11 to 2.13.

Source: `torch/_subclasses/fake_tensor.py:FakeTensorMode.__torch_dispatch__`, which calls `self.dispatch`.
"""

from __future__ import annotations

import types
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Protocol

from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode


class Observer(Protocol):
    """Called once per operator that the user's code dispatches, not for operators inside of those."""

    def __call__(
        self, run: Callable[..., Any], operator: Any, args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> Any:
        """Return what the user's code gets.

        `run()` returns what fake mode itself would return, `run(name=value)` with another keyword argument.
        """


@contextmanager
def observed(mode: FakeTensorMode, observer: Observer) -> Iterator[None]:
    """Enter a context in which `observer` answers for the operators of `mode`, and no other observer does."""
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
    """Let `observer` answer for the operators of `mode` from now on, as long as the mode lives."""
    stock = types.MethodType(type(mode).dispatch, mode)
    is_inside = False

    def dispatch(
        func: Any, classes: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        nonlocal is_inside
        kwargs = kwargs or {}
        # A wrapper around fakes answers by calling operators itself, which are observed one by one.
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
