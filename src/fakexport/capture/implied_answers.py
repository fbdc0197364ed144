"""Conditions on data whose answer the code around them implies, so that no caller has to assume it.

With the other answer `forward` raises, or it computes the same. And loops over the selected rows of a mask
that may run over all of its rows.
"""

from __future__ import annotations

import builtins
import traceback
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from pathlib import PurePath
from types import BuiltinFunctionType, CodeType, FrameType, FunctionType
from typing import Any

import torch
from torch import nn

from fakexport._torch.data_dependent_questions import Question
from fakexport.diagnostics import (
    Span,
    answer_that_goes_on,
    is_caught,
    is_negated,
    last_line_of_loop,
    selected_writes,
    source_text,
    visited_rows,
)

from .call_site import is_asked_by_user
from .failure import is_asking_for_truth


@dataclass(frozen=True)
class ImpliedAnswer:
    """An answer that is right for every input with which `forward` does not raise.

    Args:
        answer: What the asked value is.
        said: What the program says where it raises because `forward` would; None where both answers compute
            the same, and the program need not ask.
    """

    answer: bool
    said: str | None


def implied_answer(question: Question, frames: Sequence[tuple[FrameType, Span]]) -> ImpliedAnswer | None:
    """Return the answer of a condition that the code around it implies, or None.

    It does in two cases. Where `if CONDITION: raise ...` or `assert CONDITION` raises with one answer, it is
    the other one, unless a `try` in a running function may catch the error. And where
    `if MASK.any(): x[MASK] = value` or `if ROWS.numel() == 0: continue` leads to lines that only write what
    is selected, something is.
    """
    frame, span = frames[-1]
    if question.kind != "truth" or not is_asking_for_truth(frame):
        return None
    if question.is_of_size and not is_asked_by_user(question):
        return None  # Whether a tensor has one element, so that it may be true or false.
    if (found := answer_that_goes_on(span)) is not None:
        answer, raised = found
        if is_caught(raised, (place for _, place in frames)):
            return None
        shown = source_text(span) or question.expression
        error = raised or "an error"
        said = f"forward raises {error} at {PurePath(span.path).name}:{span.line}: `{shown}` is {not answer}"
        return ImpliedAnswer(answer ^ is_negated(span), said)
    if (writes := selected_writes(span)) is not None:
        selection, *written = (frame.f_locals.get(name) for name in (writes.selection, *writes.written))
        is_selection = isinstance(selection, torch.Tensor) and (
            not writes.is_mask or selection.dtype == torch.bool
        )
        is_written = all(isinstance(each, torch.Tensor) for each in written)
        if is_selection and is_written and not may_change_state(frame, writes.called):
            return ImpliedAnswer(writes.answer ^ is_negated(span), None)
    return None


def may_change_state(frame: FrameType, called: Iterable[str]) -> bool:
    """Return whether a callable may keep state: a module with buffers, its method, a closure, an object.

    A variable of a file or a class that changes is reported as FE903.

    Args:
        frame: Where they are called.
        called: Their names there, such as `self.experts`. A container stands for what is in it.
    """
    for name in called:
        root, *attributes = name.split(".")
        known = (frame.f_locals, frame.f_globals, vars(builtins))
        found: Any = next((names[root] for names in known if root in names), _MADE_LATER)
        if found is _MADE_LATER:
            continue  # By the lines that the condition is about: a tensor.
        for attribute in attributes:
            found = getattr(found, attribute, None)
        owner = getattr(found, "__self__", found)
        if isinstance(owner, nn.Module):
            if next(owner.buffers(), None) is not None:
                return True
        elif not _is_stateless(found):
            return True
    return False


_MADE_LATER = object()


def _is_stateless(found: Any) -> bool:
    """Return whether a function, or what a container holds, has no variables besides those of its file."""
    if isinstance(found, (list, tuple)):
        return all(isinstance(each, nn.Module) or _is_stateless(each) for each in found)
    if isinstance(found, FunctionType):
        return not found.__closure__
    owner = getattr(found, "__self__", None)
    return isinstance(found, (BuiltinFunctionType, type)) or isinstance(owner, torch.Tensor)


# A program has the operators of every turn: with 128 experts in each of 8 layers, 50,000 nodes.
_MOST_ROWS = 64


class _Row(list[int]):
    """A row of `nonzero()`: the number of one, as what indexes a mask and what is read from it."""

    def item(self) -> int:
        return self[0]

    def __int__(self) -> int:
        return self[0]


def implied_rows(tensor: torch.Tensor, frames: Sequence[tuple[FrameType, Span]]) -> list[_Row] | None:
    """Return every row of a mask, for a loop over the selected ones; None if that could change the result.

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
