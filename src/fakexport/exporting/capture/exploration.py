"""Find all problems of a failed capture in one more trace.

`torch.export` stops at the first problem. This module traces the model again with non-strict `torch.export`,
and hooks the points where the trace would stop: data-dependent conditions and numbers get a value, operators
without a fake kernel return a stand-in, and tensors on different devices are moved to one device. Each of
these is an assumption and is reported.

One trace finds all problems. Repeating the export with one more assumption each time would need one trace per
problem. The trace is torch's own, because running `forward` under a fake mode would ignore declared
dimensions and handle control-flow operators differently. The trace runs only after a failure, and ends before
the graph passes.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from types import FrameType
from typing import Any

from torch import nn
from torch.export import ExportedProgram

from fakexport._torch.tracing.data_dependent_questions import (
    Answer,
    Question,
    Unasserted,
    answered_numpy_reads,
    answered_questions,
    iterated_tensors,
    unknowns_noted,
)
from fakexport._torch.tracing.operator_faults import (
    OperatorFault,
    TraceFinished,
    ended_after_trace,
    traced_past_faults,
)
from fakexport._torch.tracing_lock import one_at_a_time
from fakexport.emulation.fake import UnsupportedSubclassError
from fakexport.rules.diagnostics import Span, is_in_for, is_loop_test, is_negated, source_text

from .assumed_answers import AssumedAnswers, can_be_assumed
from .call_site import running_user_frames
from .capture import Captured, failure_of, torch_shapes, traced
from .dynamic_dims import varying_inputs
from .example_run import (
    ExampleAnswers,
    ExampleRun,
    Place,
    named_inputs,
    number_for,
    place_of,
    raises_in_eager_mode,
    run_with_example,
    runs_with_batch_of_one,
    takes_any_keyword,
)
from .explored import Assumption, Exploration, Problem
from .failure import CaptureFailure
from .given_inputs import with_unsupported_input
from .left_fakes import fakes_taken_back
from .lost_writes import FunctorchError, LostWriteError
from .plain_inputs import prepared_inputs
from .preparation import PreparedModel

# Limits of the trace, for loops that never end under the assumptions and models that take too long.
MOST_ANSWERS = 2_000
MOST_OPERATORS = 500_000
# Processor time, because size expressions that grow without bound take time without running operators.
MOST_SECONDS = 60.0
# How often a condition may get the same value: identical layers should be treated alike, but a loop must end.
_VISITS_ALIKE = 200

_SYMBOL = re.compile(r"\b(?:u|zuf)[0-9]+\b")


@one_at_a_time
def explore(model: PreparedModel, example: ExampleRun, *, may_visit_rows: bool) -> Exploration:
    """Find everything that blocks the capture of a model by tracing past each failure under an assumption.

    Args:
        model: The model. Its capture has already reported usage errors.
        example: The record of a call with the example inputs, to answer conditions.
        may_visit_rows: Whether loops may visit every row of a mask, as in the capture.
    Returns:
        The problems and assumptions of the trace. The result is deterministic unless the trace takes longer
            than `MOST_SECONDS`.
    """
    module, request = model.built.module, model.request
    args, kwargs, dynamic, restored = prepared_inputs(
        module, model.inputs.args, model.inputs.kwargs, request.dynamic
    )
    shapes = torch_shapes(varying_inputs(module, args, kwargs, model.facts), dynamic)
    known = AssumedAnswers(request.assumed, traced.__code__, may_visit_rows)
    answers = ExampleAnswers(example, _Trace.run.__code__)
    trace = _Trace(known, answers, time.thread_time() + MOST_SECONDS)
    with (
        restored,
        answered_questions(trace.answer),
        unknowns_noted(trace.example.note),
        traced_past_faults(trace.may_go_on, before_each=trace.count),
        answered_numpy_reads(trace.may_read),
        iterated_tensors(known.rows),
        ended_after_trace(),
    ):
        found = trace.run(module, args, kwargs, shapes, model.tracing())
    if found.is_complete:
        known.check_asked()
    return found


def capture_or_explore(
    model: PreparedModel,
    *,
    on_failure: Callable[[CaptureFailure], None],
    whole: ExportedProgram | None = None,
) -> tuple[Captured, Exploration | None]:
    """Return the result of `PreparedModel.captured` and, for a failure, the findings of `explore`.

    Raises:
        TypeError, ValueError: as for `capture`.
    """
    captured = model.captured(whole)
    if captured.failure is None:
        return captured, None
    on_failure(captured.failure)
    if isinstance(captured.failure.error, (UnsupportedSubclassError, LostWriteError, FunctorchError)):
        return captured, Exploration(is_complete=True)  # The trace itself completed.
    module, args, kwargs = model.built.module, model.inputs.args, model.inputs.kwargs
    with fakes_taken_back(module):
        example = run_with_example(module, args, dict(kwargs))
        found = explore(model, example, may_visit_rows=captured.may_visit_rows)
        is_eager_fault = raises_in_eager_mode(module, example.error, captured.failure)
        batch_of_one = runs_with_batch_of_one(module, kwargs) if is_eager_fault and not args else ()
    inputs = named_inputs(kwargs) if not args and takes_any_keyword(module) else ()
    return captured, replace(found, is_eager_fault=is_eager_fault, batch_of_one=batch_of_one, inputs=inputs)


class _Limited(BaseException):
    """The trace reached a limit. It is not an `Exception`, so `except Exception` does not catch it."""


@dataclass
class _Trace:
    """The trace of an exploration, with the values that it assumes and the problems that it finds.

    Args:
        known: The caller's assumptions.
        example: Results of data-dependent queries in a call with the example inputs.
        ends_at_s: Time limit, on the clock of `time.thread_time`.
    """

    known: AssumedAnswers
    example: ExampleAnswers
    ends_at_s: float
    operators: int = 0
    _problems: dict[Any, Problem] = field(default_factory=dict)
    _assumptions: dict[tuple[str, Span], Assumption] = field(default_factory=dict)
    # The frames are kept alive, so that no new frame reuses the id of an old one.
    _met: dict[tuple[Any, int, int], FrameType] = field(default_factory=dict)
    _in_frame: dict[tuple[int, int], int] = field(default_factory=dict)
    _visits: dict[Place, int] = field(default_factory=dict)
    _numbers: dict[tuple[FrameType, Place], str] = field(default_factory=dict)
    _answers: int = 0

    def run(
        self,
        module: nn.Module,
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any],
        shapes: Any,
        tracing: AbstractContextManager[Any] | None,
    ) -> Exploration:
        last: tuple[Problem, ...] = ()
        is_complete = False
        limit = None
        try:
            traced(
                module,
                args,
                kwargs,
                shapes=shapes,
                strict=False,
                tracing=tracing,
                read_constants={},
                answers=self.known,
                is_specialized=True,
            )
        except TraceFinished:
            is_complete = True
        except _Limited as reached:
            limit = str(reached)
        except Exception as error:
            failure = with_unsupported_input(failure_of(error), module, args, kwargs)
            last = (Problem(failure, tuple(self._assumptions.values()), is_last=True),)
        problems = (*self._problems.values(), *last)
        return Exploration(problems, tuple(self._assumptions.values()), is_complete, limit)

    def count(self) -> None:
        """Count an operator, and end a trace that takes too long."""
        self.operators += 1
        if self.operators > MOST_OPERATORS:
            raise _Limited(f"{MOST_OPERATORS:,} operators")
        if time.thread_time() > self.ends_at_s:
            raise _Limited(f"{MOST_SECONDS:.0f} seconds of processor time")

    def answer(self, question: Question) -> Answer | Unasserted | None:
        """Return the result to use for a data-dependent query, or None for a query outside of user code."""
        if (known := self.known.answer(question)) is not None:
            return known
        frames = self._frames()
        if not frames:
            return None
        frame, span = frames[-1]
        expected = self.example.answer(question, span)
        if question.kind != "truth":
            given = number_for(question, expected)
        else:
            given = self._truth(question, frame, span, expected)
        if question.is_of_size:
            clause = f"{question.expression} is {given}" + (
                f" in `{text}`" if (text := source_text(span)) else ""
            )
        else:
            is_opposite = question.kind == "truth" and is_negated(span)
            clause = f"`{source_text(span) or question.expression}` is {not given if is_opposite else given}"
        is_branch = question.kind == "truth" and not question.is_of_size
        answer = self._assumable(question, given, expected, frame, span)
        self._note(question.error, place_of(span), frames, clause, is_branch=is_branch, answer=answer)
        return given

    def _assumable(
        self, question: Question, given: Answer, expected: Answer | None, frame: FrameType, span: Span
    ) -> bool | int | None:
        """Return the value that a user can pass to `--assume` for this query, or None if there is none.

        There is a value only if `given` is the result for the example inputs, or if the example inputs do not
        determine a size, because tensors are assumed to be nonempty. Users cannot assume the value of a size,
        such as a number of rows, or a condition on a size in a `for` statement, because the statement may
        evaluate the condition for several tensors.
        """
        is_default = expected is None and question.is_of_size
        if not (given == expected or is_default) or not can_be_assumed(question, span):
            return None
        if isinstance(given, float):
            return None
        if isinstance(given, bool):
            return None if question.is_of_size and is_in_for(span) else given ^ is_negated(span)
        known = self._numbers.setdefault((frame, place_of(span)), question.expression)
        return None if question.is_of_size or known != question.expression else given

    def may_go_on(self, fault: OperatorFault) -> bool:
        """Record an operator that fails, and return whether a stand-in may replace it."""
        frames = self._frames()
        if not frames:
            return False
        key = fault.operator if fault.kind == "kernel" else place_of(frames[-1][1])
        verb = "gets" if fault.kind == "devices" else "returns"
        self._note(
            fault.error,
            (fault.kind, key),
            frames,
            f"{fault.operator} {verb} {fault.remedy}",
            call=fault if fault.kind == "kernel" else None,
        )
        return True

    def may_read(self, error: Exception) -> bool:
        """Record a NumPy read of unknown data, and return whether an array of ones may replace it."""
        frames = self._frames()
        if not frames:
            return False
        place = place_of(frames[-1][1])
        self._note(
            error, ("numpy", place), frames, f"`{source_text(frames[-1][1]) or 'numpy()'}` is all ones"
        )
        return True

    def _truth(self, question: Question, frame: FrameType, span: Span, expected: Answer | None) -> bool:
        """Return the assumed value of a condition.

        If the value for the example inputs is known, and the condition does not control a loop, this value is
        used. Otherwise, the value is False, except that shapes are assumed to match, and a loop body is
        assumed to run once. If a frame evaluates the condition again at the same instruction, the code is in
        a loop, and the value changes so that the loop ends.
        """
        if question.is_of_size and question.is_fit:
            return True
        place = place_of(span)
        is_loop = is_loop_test(span)
        if expected is not None and not is_loop:
            return bool(expected)
        usual = is_loop and not is_negated(span)
        visits = self._visits[place] = self._visits.get(place, 0) + 1
        before = self._in_frame.get((id(frame), frame.f_lasti), 0)
        self._in_frame[id(frame), frame.f_lasti] = before + 1
        if is_in_for(span) and not question.is_of_size:
            return usual
        is_again = before % 2 == 1 if not question.is_of_size else visits > _VISITS_ALIKE
        is_endless = visits > _VISITS_ALIKE and visits % 2 == 1
        return usual ^ (is_again or is_endless)

    def _frames(self) -> list[tuple[FrameType, Span]]:
        self._answers += 1
        if self._answers > MOST_ANSWERS:
            raise _Limited(f"{MOST_ANSWERS:,} assumptions")
        return running_user_frames(_Trace.run.__code__)

    def _note(
        self,
        error: BaseException,
        key: Any,
        frames: list[tuple[FrameType, Span]],
        assumed: str,
        *,
        is_branch: bool = False,
        answer: bool | int | None = None,
        call: OperatorFault | None = None,
    ) -> None:
        """Record a problem, or increase its count if it occurs again in a new frame or on a new line."""
        frame, span = frames[-1]
        known = self._problems.get(key)
        if known is None:
            spans = tuple(span for _, span in frames)
            failure = replace(CaptureFailure.of(error, spans=spans), call=call, variables=frame.f_locals)
            self._problems[key] = Problem(failure, tuple(self._assumptions.values()))
        elif (key, id(frame), span.line) not in self._met:
            self._problems[key] = replace(known, count=known.count + 1)
        self._met[key, id(frame), span.line] = frame
        # Identical layers count once: they differ only in the numbers of their symbols.
        made = Assumption(assumed, span, is_branch, answer)
        kept = self._assumptions.setdefault((_SYMBOL.sub("u", assumed), span), made)
        if kept.answer != answer:
            self._assumptions[_SYMBOL.sub("u", assumed), span] = replace(kept, answer=None)
