"""Loops over a tensor whose number of rows only data tell. Seen on torch 2.13.

Source: `torch/_tensor.py:Tensor.__iter__`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch.fx.experimental.symbolic_shapes import free_unbacked_symbols

from .patching import Patches, in_force


def iterated_tensors(rows: Callable[[torch.Tensor], Sequence[Any] | None]) -> Patches:
    """Return a context in which a loop over unknown rows runs over what `rows` returns; None: over itself."""
    stock = in_force(torch.Tensor, "__iter__")

    def iterate(tensor: torch.Tensor) -> Iterator[Any]:
        if tensor.dim() and free_unbacked_symbols(tensor.shape[0]) and (found := rows(tensor)) is not None:
            return iter(found)
        return stock(tensor)  # type: ignore[no-any-return]

    return Patches({(torch.Tensor, "__iter__"): iterate})
