"""Infer the values of data-dependent conditions from the surrounding code, without the user's assumptions.

A value can be inferred if `forward` raises an error for the other value, or if both values lead to the same
result. This module also finds loops over the selected rows of a mask that can run over all rows instead.
"""

from __future__ import annotations

import ast
import builtins
import traceback
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from pathlib import PurePath
from types import BuiltinFunctionType, CodeType, FrameType, FunctionType
from typing import Any

import torch
from torch import nn

from fakexport._torch.tracing.data_dependent_questions import Question
from fakexport.rules.diagnostics import (
    Span,
    condition_at,
    is_at,
    is_negated,
    last_line_of_loop,
    source_text,
    tries_around,
)

from .call_site import is_asked_by_user
from .failure import is_asking_for_truth
from .selected_writes import SelectedWrites, selected_writes, visited_rows


@dataclass(frozen=True)
class ImpliedAnswer:
    """An inferred answer. It is correct for every input for which `forward` does not raise an error.

    Args:
        answer: The value of the condition.
        said: Message of the assertion in the program. The assertion fails if `forward` would raise an error.
            None if both values lead to the same result, so that no assertion is needed.
    """

    answer: bool
    said: str | None


def implied_answer(question: Question, frames: Sequence[tuple[FrameType, Span]]) -> ImpliedAnswer | None:
    """Return the value of a condition that can be inferred from the surrounding code, or None.

    There are two cases. First, `if CONDITION: raise ...` and `assert CONDITION` raise for one value. The
    other value is used, unless a `try` in a running function may catch the error. Second, in `if MASK.any():
    x[MASK] = value` or `if ROWS.numel() == 0: continue`, the code only writes selected elements. The value is
    the one for which some elements are selected.
    """
    frame, span = frames[-1]
    if question.kind != "truth" or not is_asking_for_truth(frame):
        return None
    if question.is_of_size and not is_asked_by_user(question):
        return None  # `bool(tensor)` makes torch check that the tensor has one element.
    if (found := _answer_that_goes_on(span)) is not None:
        answer, raised = found
        if _is_caught(raised, (place for _, place in frames)):
            return None
        shown = source_text(span) or question.expression
        error = raised or "an error"
        said = f"forward raises {error} at {PurePath(span.path).name}:{span.line}: `{shown}` is {not answer}"
        return ImpliedAnswer(answer ^ is_negated(span), said)
    if (writes := selected_writes(span)) is not None and _selection(writes[0], frame) is not None:
        return ImpliedAnswer(writes[1] ^ is_negated(span), None)
    return None


# Exceptions that Python itself catches, such as at the end of a loop or in `getattr` with a default.
_SIGNALS = (StopIteration, StopAsyncIteration, GeneratorExit, AttributeError, LookupError)


def _answer_that_goes_on(span: Span) -> tuple[bool, str] | None:
    """If `forward` raises for one value of a condition, return the value for which it continues.

    Args:
        span: Position of the condition, or of an operand that alone decides its value. In the test of an `if`
            that raises, these are all operands of `or`, but only the last operand of `and`.

    Returns:
        The value and the name of the exception ("" if the source does not name it). None if the condition
        does not decide whether `forward` raises.
    """
    node = condition_at(span) if span.end_column is not None else None
    match node:
        case ast.Assert():
            goes_on, raised = True, "AssertionError"
        case ast.If(body=body) if (error := _only_raises(body)) is not None:
            goes_on, raised = False, error
        case ast.If(orelse=[_, *_] as body) if (error := _only_raises(body)) is not None:
            goes_on, raised = True, error
        case _:
            return None
    answer = _answer_of_part(node.test, span, goes_on)
    return None if answer is None else (answer, raised)


def _is_caught(raised: str, places: Iterable[Span]) -> bool:
    """Return whether one of the running functions, or Python itself, may catch an exception.

    Args:
        raised: Name of the exception, or "" if unknown.
        places: The position, with file and line, in each running function.
    """
    error = _error_type(raised)
    if error is not None and issubclass(error, _SIGNALS):
        return True
    return any(_catches(node, error) for place in places for node in tries_around(place))


def _answer_of_part(test: ast.expr, span: Span, answer: bool) -> bool | None:
    """Return the only value that the operand at `span` can have if the condition is `answer`, or None.

    Python evaluates the operands of `and` and `or` in order, so if the last one is evaluated, it decides
    alone. For `0 < n < m`, the position does not show which of the two comparisons was evaluated.
    """
    match test:
        case ast.BoolOp(op, values):
            deciding = values if isinstance(op, ast.And) == answer else values[-1:]
            found = (_answer_of_part(value, span, answer) for value in deciding)
            return next((each for each in found if each is not None), None)
        case ast.Compare(ops=[_, _, *_]) if not answer:
            return None
        case _ if is_at(test, span):
            return answer
        case ast.UnaryOp(ast.Not(), operand):
            return _answer_of_part(operand, span, not answer)
    return None


def _only_raises(body: Sequence[ast.stmt]) -> str | None:
    """Return the name of the exception that a block raises, or None if the block may do more.

    The name is "" if the source does not show it. The block may contain assignments before the `raise`, which
    compute the message.
    """
    *before, last = body
    if not isinstance(last, ast.Raise) or not all(
        isinstance(line, (ast.Assign, ast.AnnAssign)) for line in before
    ):
        return None
    match last.exc:
        case ast.Name(name) | ast.Call(ast.Name(name)):
            return name
    return ""


def _error_type(name: str) -> type[BaseException] | None:
    found = getattr(builtins, name, None)
    return found if isinstance(found, type) and issubclass(found, BaseException) else None


def _catches(node: ast.Try | ast.With, raised: type[BaseException] | None) -> bool:
    """Return whether a `try` or `with` may catch an exception. True if one of the types is unknown."""
    if isinstance(node, ast.With):
        return any("suppress" in ast.unparse(item.context_expr) for item in node.items)
    caught = (each.type for each in node.handlers if not isinstance(each.body[-1], ast.Raise))
    return any(_is_for(each, raised) for each in caught)


def _is_for(written: ast.expr | None, raised: type[BaseException] | None) -> bool:
    if isinstance(written, ast.Tuple):
        return any(_is_for(each, raised) for each in written.elts)
    caught = _error_type(written.id) if isinstance(written, ast.Name) else None
    return written is None or caught is None or raised is None or issubclass(raised, caught)


def _selection(writes: SelectedWrites, frame: FrameType) -> torch.Tensor | None:
    """Return the tensor that selects the written elements, or None if the lines may have other effects."""
    selection, *written = (frame.f_locals.get(name) for name in (writes.selection, *writes.written))
    if not isinstance(selection, torch.Tensor) or (writes.is_mask and selection.dtype != torch.bool):
        return None
    is_written = all(isinstance(each, torch.Tensor) for each in written)
    return selection if is_written and not _may_change_state(frame, writes.called) else None


def _may_change_state(frame: FrameType, called: Iterable[str]) -> bool:
    """Return whether one of the called names may have state, such as a module with buffers or a closure.

    Variables of a file or a class are ignored, because FE903 reports their changes.

    Args:
        frame: The caller's frame.
        called: Names in that frame, such as `self.experts`. For a container, all items are checked.
    """
    for name in called:
        root, *attributes = name.split(".")
        known = (frame.f_locals, frame.f_globals, vars(builtins))
        found: Any = next((names[root] for names in known if root in names), _MADE_LATER)
        if found is _MADE_LATER:
            continue  # A tensor that is assigned in the lines that depend on the condition.
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
    """Return whether a function, or each item of a container, has no state except module-level variables."""
    if isinstance(found, (list, tuple)):
        return all(isinstance(each, nn.Module) or _is_stateless(each) for each in found)
    if isinstance(found, FunctionType):
        return not found.__closure__
    owner = getattr(found, "__self__", None)
    return isinstance(found, (BuiltinFunctionType, type)) or isinstance(owner, torch.Tensor)


# The trace unrolls every iteration: 128 experts in each of 8 layers result in 50,000 nodes.
_MOST_ROWS = 64


class _Row(list[int]):
    """A row of `nonzero()` with one index into the mask. Models use the row or `row[0]` as the index."""

    def item(self) -> int:
        return self[0]

    def __int__(self) -> int:
        return self[0]


def implied_rows(tensor: torch.Tensor, frames: Sequence[tuple[FrameType, Span]]) -> list[_Row] | None:
    """Return all rows of a mask, for a loop over the selected rows. Return None if that may change results.

    Args:
        tensor: The tensor that the loop iterates over: the result of `nonzero()`, of shape [rows, 1].
        frames: The running frames of user code with their source lines, outermost first.
    """
    frame, span = frames[-1]
    if tensor.dim() != 2 or tensor.shape[1] != 1 or (found := visited_rows(span)) is None:
        return None
    writes, dims = found
    if (mask := _selection(writes, frame)) is None:
        return None
    others = sorted(dim % mask.dim() for dim in dims) == list(range(1, mask.dim()))
    number = mask.shape[0]
    is_small = isinstance(number, int) and 0 < number <= _MOST_ROWS
    return [_Row([index]) for index in range(number)] if others and is_small else None


def is_in_loop(error: BaseException, loops: Collection[tuple[CodeType, int]]) -> bool:
    """Return whether an error was raised in one of the loops, each given by its code object and line."""
    return any(
        frame.f_code is code and line <= number <= last_line_of_loop(Span(code.co_filename, line))
        for frame, number in traceback.walk_tb(error.__traceback__)
        for code, line in loops
    )
