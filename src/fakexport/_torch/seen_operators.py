"""Seeing every operator that runs in a block, on whatever tensors, meta ones among them.

`dispatch_observer` sees those of one fake mode; a fake costs a hundred times what a meta tensor costs.
Seen on torch 2.11 to 2.13.

Source: `torch/utils/_python_dispatch.py:TorchDispatchMode`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from torch.utils._python_dispatch import TorchDispatchMode

__all__ = ["SeenOperators"]

Note = Callable[[Any, Sequence[Any], Any], None]


class SeenOperators(TorchDispatchMode):
    """The context in which `note(operator, args, result)` is called for each operator, after it ran."""

    def __init__(self, note: Note) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._note = note

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        self._note(func, args, result)
        return result
