"""Run `forward` on the example inputs without tracing. Record the numbers that it reads and its error."""

from __future__ import annotations

import inspect
import itertools
import re
import time
import typing
from collections import Counter
from collections.abc import Mapping
from contextlib import ExitStack, nullcontext
from dataclasses import dataclass, field
from types import CodeType
from typing import Any

import torch
from torch import nn

from fakexport._torch.emulation.fake_tensors import mode_of
from fakexport._torch.pytree import tree_leaves
from fakexport._torch.tracing.data_dependent_questions import Answer, Question
from fakexport.emulation.history import example_recording
from fakexport.models.sources import InputSpec
from fakexport.rules.diagnostics import Span, condition_at

from .call_site import is_asked_by_user, running_user_frames
from .failure import CaptureFailure

# Limits of the run: how many numbers it reads, and seconds. If it reaches one of them, the run ends, and the
# numbers that it has read are used.
_MOST_READS = 1_000
_MOST_SECONDS = 20.0
# Maximum number of iterations of a loop that a trace unrolls.
_MOST_STEPS = 64

_OF_FAKES = re.compile(
    r"DispatchKey|NotImplementedError|not allocated|FakeTensor|fake tensor|DynamicOutputShape|DataDependent"
    r"|Unreplayable"
    # A real device of the target, with a build of torch for it, has no such errors.
    r"|\bNYI\b|without ATen_|not compiled with",
    re.IGNORECASE,
)

Place = tuple[str, int, int | None]


@dataclass(frozen=True)
class ExampleRun:
    """The record of a call with the example inputs.

    Args:
        error: The error that the model raised, or None.
        reads: For each position (file, line and column) in the code, the numbers that the code read from
            tensors, in order. For an operator whose result has a data-dependent shape, the number is the
            number of rows.
    """

    error: Exception | None = None
    reads: Mapping[Place, tuple[Answer, ...]] = field(default_factory=dict)


class _Ended(BaseException):
    """Ends the run at a limit. It is not an `Exception`, so `except Exception` does not catch it."""


def run_with_example(module: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> ExampleRun:
    """Run `forward` on fake tensors, without the patches of a trace.

    Values that `forward` reads are computed from the example inputs and the weights that the constructor
    creates, if that is fast. Normally distributed numbers replace the results of slow operators and the
    weights that have no value.
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
        except Exception as raised:  # any error of a model
            error = raised
    return ExampleRun(error, {place: tuple(numbers) for place, numbers in reads.items()})


@dataclass
class ExampleAnswers:
    """Results of data-dependent queries for one trace, taken from a call with the example inputs.

    `until` is the code object of the function that calls the model.
    """

    run: ExampleRun
    until: CodeType
    _unknowns: dict[str, Answer] = field(default_factory=dict)
    _made: Counter[Place] = field(default_factory=Counter)

    def note(self, name: str) -> None:
        """Record the value of a new unbacked symbol: the number that the recorded call read at this line."""
        frames = running_user_frames(self.until)
        place = place_of(frames[-1][1]) if frames else None
        read = self.run.reads.get(place, ()) if place is not None else ()
        if place is not None and read:
            index, self._made[place] = self._made[place], self._made[place] + 1
            if index < len(read) or len(set(read)) == 1:
                self._unknowns[name] = read[min(index, len(read) - 1)]

    def answer(self, question: Question, span: Span) -> Answer | None:
        """Return the result of a data-dependent query in the recorded call, or None if it is unknown."""
        if question.is_of_size and not (is_asked_by_user(question) and condition_at(span) is not None):
            return None
        return question.answer_for(self._unknowns)


def number_for(question: Question, expected: Answer | None) -> Answer:
    """Return the number to assume for a data-dependent query that returns a number.

    If the example run read a number that is small enough to unroll a loop, return it. Otherwise, and for all
    sizes, return a default: 2 for a size, because torch handles sizes of 0 and 1 specially, and 1 for other
    numbers. If the default is outside of the known range, return the nearest number in the range.
    """
    if question.kind == "float":
        return 1.0
    if expected is not None and not question.is_of_size and 0 <= expected <= _MOST_STEPS:
        return int(expected)
    wanted = 2 if question.is_of_size else 1
    low = wanted if question.low is None else max(wanted, question.low)
    return low if question.high is None else min(low, question.high)


def place_of(span: Span) -> Place:
    """Return the path, line and column of a span, as a key."""
    return span.path, span.line, span.column


def _number(value: Any) -> Answer | None:
    """Return a number that was read from data, or the number of rows if the shape is data-dependent."""
    if isinstance(value, (bool, int, float)):
        return value
    first = next((leaf for leaf in tree_leaves(value) if isinstance(leaf, torch.Tensor)), None)
    return first.shape[0] if first is not None and first.dim() else None


def raises_in_eager_mode(module: nn.Module, error: Exception | None, failure: CaptureFailure) -> bool:
    """Return whether `forward` also raises an error in eager mode, at the line where the capture failed.

    Such an error is a fault of the model, its config or its inputs. The error types may differ: a
    decomposition in a trace may raise ValueError where a kernel raises RuntimeError.
    """
    # Eager mode has no such failures: it has no symbolic sizes, and real tensors have data and kernels.
    if error is None or failure.is_of_symbols or _is_of_fakes(failure):
        return False
    if any(isinstance(each, torch.jit.ScriptModule) for each in module.modules()):
        return False
    found = CaptureFailure.of(error)
    return _failing_line(found) == _failing_line(failure) and not _is_of_fakes(found)


def runs_with_batch_of_one(module: nn.Module, kwargs: Mapping[str, Any]) -> tuple[str, ...]:
    """Return inputs with batch size 1, as `NAME=DTYPE[DIMS]`, if `forward` accepts them in eager mode.

    Some models support only one sample at a time, although their code has a batch dimension (TVP).

    Returns:
        The inputs. Empty if the inputs have no common batch size, if their batch size is already 1, or if the
            model also fails with a batch size of 1.
    """
    tensors = {
        name: value for name, value in kwargs.items() if isinstance(value, torch.Tensor) and value.dim()
    }
    batches = {value.shape[0] for value in tensors.values()}
    if len(tensors) < len(kwargs) or len(batches) != 1 or 1 in batches:
        return ()
    mode = mode_of(module.parameters())
    with nullcontext() if mode is None else mode:
        first = {name: value[:1].clone() for name, value in tensors.items()}
    if run_with_example(module, (), first).error is not None:
        return ()
    return named_inputs(first)


def takes_any_keyword(module: nn.Module) -> bool:
    """Return whether `forward` accepts keyword inputs of any name: its `**kwargs` declares no names."""
    parameters = inspect.signature(module.forward).parameters.values()
    return any(each.kind is each.VAR_KEYWORD and not typing.get_args(each.annotation) for each in parameters)


def named_inputs(kwargs: Mapping[str, Any]) -> tuple[str, ...]:
    """Return inputs as `NAME=DTYPE[DIMS]`, or nothing if one of them is not a tensor."""
    if not all(isinstance(value, torch.Tensor) for value in kwargs.values()):
        return ()
    return tuple(str(InputSpec.of(name, value)) for name, value in kwargs.items())


def _is_of_fakes(failure: CaptureFailure) -> bool:
    return any(map(_OF_FAKES.search, (*failure.error_types, *failure.messages)))


def _failing_line(failure: CaptureFailure) -> tuple[str, int] | None:
    """Return the path and line that raise the error, or the error's type and 0 if the line is unknown."""
    if not failure.spans:
        return failure.error_types[-1], 0
    return failure.spans[-1].path, failure.spans[-1].line
