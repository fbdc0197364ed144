"""A call of `forward` with the example inputs and without a trace: what it reads from data, and raises."""

from __future__ import annotations

import itertools
import time
from collections import Counter
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from types import CodeType
from typing import Any

import torch
from torch import nn

from fakexport._torch.data_dependent_questions import Answer, Question
from fakexport._torch.fake_tensors import mode_of
from fakexport._torch.pytree import tree_leaves
from fakexport.diagnostics import Span, is_test
from fakexport.history import example_recording

from .call_site import is_asked_by_user, running_user_frames

# The call ends here, and what was read until then is known.
_MOST_READS = 1_000
_MOST_SECONDS = 20.0
# Of a loop that a trace follows.
_MOST_STEPS = 64

Place = tuple[str, int, int | None]


@dataclass(frozen=True)
class ExampleRun:
    """A call with the example inputs.

    Args:
        error: What the model raised.
        reads: The numbers that each place read from data, in order: a number, or how many rows a result has.
    """

    error: Exception | None = None
    reads: Mapping[Place, tuple[Answer, ...]] = field(default_factory=dict)


class _Ended(BaseException):
    """Not an `Exception`: a model's `except` must not keep it."""


def run_with_example(module: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> ExampleRun:
    """Run `forward` on fake tensors, under none of the patches of a trace.

    Values that it reads are computed from the example inputs and from the weights that the constructor makes,
    if that takes little time; results of operators that take long, and weights without a value, are normally
    distributed numbers.
    """
    leaves = (*module.parameters(), *module.buffers(), *tree_leaves((args, dict(kwargs))))
    tensors = [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]
    mode = mode_of(tensors)
    reads: dict[Place, list[Answer]] = {}
    ends_at_s = time.process_time() + _MOST_SECONDS
    count = itertools.count(1)

    def note(value: Any) -> None:
        if next(count) > _MOST_READS or time.process_time() > ends_at_s:
            raise _Ended
        frames = running_user_frames(run_with_example.__code__)
        if frames and (number := _number(value)) is not None:
            reads.setdefault(place_of(frames[-1][1]), []).append(number)

    error: Exception | None = None
    with ExitStack() as stack:
        stack.enter_context(torch.no_grad())
        if mode is not None:
            stack.enter_context(mode)
            stack.enter_context(example_recording(mode, tensors, note))
        try:
            module(*args, **kwargs)
        except _Ended:
            pass
        except Exception as raised:  # whatever a model raises
            error = raised
    return ExampleRun(error, {place: tuple(numbers) for place, numbers in reads.items()})


@dataclass
class ExampleAnswers:
    """Answers of one trace that a call with the example inputs gives.

    Args:
        run: The call.
        until: Code of the function that starts the model in the trace.
    """

    run: ExampleRun
    until: CodeType
    _unknowns: dict[str, Answer] = field(default_factory=dict)
    _made: Counter[Place] = field(default_factory=Counter)

    def note(self, name: str) -> None:
        """Keep the number that the call read where the trace makes one that it does not know."""
        frames = running_user_frames(self.until)
        place = place_of(frames[-1][1]) if frames else None
        read = self.run.reads.get(place, ()) if place is not None else ()
        if place is not None and read:
            index, self._made[place] = self._made[place], self._made[place] + 1
            if index < len(read) or len(set(read)) == 1:
                self._unknowns[name] = read[min(index, len(read) - 1)]

    def answer(self, question: Question, span: Span) -> Answer | None:
        """Return the answer to a question at a place; None if it is not known."""
        if question.is_of_size and not (is_asked_by_user(question) and is_test(span)):
            return None
        return question.answer_for(self._unknowns)


def number_for(question: Question, expected: Answer | None) -> Answer:
    """Return the number of the example inputs if that is small, since a loop may run as often.

    Else one that is neither 0 nor 1 for a size, since those two have rules of their own; else 1.
    """
    if question.kind == "float":
        return 1.0
    if expected is not None and not question.is_of_size and 0 <= expected <= _MOST_STEPS:
        return int(expected)
    wanted = 2 if question.is_of_size else 1
    low = wanted if question.low is None else max(wanted, question.low)
    return low if question.high is None else min(low, question.high)


def place_of(span: Span) -> Place:
    """Return a place as a key."""
    return span.path, span.line, span.column


def _number(value: Any) -> Answer | None:
    """Return a number that was read, or how many rows a result has whose shape depends on data."""
    if isinstance(value, (bool, int, float)):
        return value
    first = next((leaf for leaf in tree_leaves(value) if isinstance(leaf, torch.Tensor)), None)
    return first.shape[0] if first is not None and first.dim() else None
