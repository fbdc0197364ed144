"""Loops over as many rows as data say, in place of which every row may be visited."""

from __future__ import annotations

import traceback
from collections.abc import Collection, Sequence
from types import CodeType, FrameType

import torch

from fakexport.diagnostics import Span, last_line_of_loop, visited_rows

from .implied_answers import may_change_state

# A program has the operators of every turn: with 128 experts in each of 8 layers, 50,000 nodes.
_MOST_ROWS = 64


class _Row(list[int]):
    """A row of `nonzero()`: the number of one, as what indexes a mask and what is read from it."""

    def item(self) -> int:
        return self[0]

    def __int__(self) -> int:
        return self[0]


def implied_rows(tensor: torch.Tensor, frames: Sequence[tuple[FrameType, Span]]) -> list[_Row] | None:
    """Return a row for each of a mask, which a loop may visit in place of those that are set; None if not.

    Args:
        tensor: What the loop runs over: what `nonzero()` returns, [rows, 1].
        frames: The running frames of user code, outermost first, with their places.
    """
    frame, span = frames[-1]
    if tensor.dim() != 2 or tensor.shape[1] != 1 or (found := visited_rows(span)) is None:
        return None
    mask, *written = (frame.f_locals.get(name) for name in (found.mask, *found.written))
    if not isinstance(mask, torch.Tensor) or not all(isinstance(each, torch.Tensor) for each in written):
        return None
    if may_change_state(frame, found.called):
        return None
    is_counted = found.is_one_hot or mask.dtype == torch.bool
    others = sorted(dim % mask.dim() for dim in found.dims) == list(range(1, mask.dim()))
    number = mask.shape[0]
    if not (is_counted and others and isinstance(number, int) and 0 < number <= _MOST_ROWS):
        return None
    return [_Row([index]) for index in range(number)]


def is_in_loop(error: BaseException, loops: Collection[tuple[CodeType, int]]) -> bool:
    """Return whether an error was raised in one of some loops."""
    return any(
        frame.f_code is code and line <= number <= last_line_of_loop(Span(code.co_filename, line))
        for frame, number in traceback.walk_tb(error.__traceback__)
        for code, line in loops
    )
