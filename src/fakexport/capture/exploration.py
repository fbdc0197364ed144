"""Find all problems of a failed capture in one more trace.

`torch.export` stops at the first problem. This traces the model again with `torch.export`, non-strictly,
while hooks answer in the places where it would stop: a condition on data gets an answer, a number a value, an
operator without a fake kernel a result, tensors on two devices one device. Every answer is an
assumption and is reported.

It is one trace with hooks, since repeating the export with one more assumption each time would cost as many
traces as there are problems. And it is torch's own trace, since a plain run of `forward` under a fake mode
would see neither declared dimensions nor control-flow operators as export does. The trace ends where the
passes over the graph begin, and it is made only after a failure.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from types import FrameType
from typing import Any

from torch import nn
from torch.export import ExportedProgram

from fakexport._torch.data_dependent_questions import (
    Answer,
    Question,
    Unasserted,
    answered_questions,
    unknowns_noted,
)
from fakexport._torch.iterated_tensors import iterated_tensors
from fakexport._torch.numpy_reads import answered_numpy_reads
from fakexport._torch.operator_faults import OperatorFault, operators_counted, traced_past_faults
from fakexport._torch.trace_end import TraceFinished, ended_after_trace
from fakexport._torch.tracing_lock import one_at_a_time
from fakexport.diagnostics import Span, is_in_for, is_loop_test, is_negated, source_text
from fakexport.fake import SubclassNotKept
from fakexport.program import ProgramFacts

from .assumed_answers import AssumedAnswer, AssumedAnswers, can_be_assumed
from .call_site import running_user_frames
from .capture import Captured, capture, failure_of, torch_shapes, traced
from .dynamic_dims import DynamicDims
from .eager_fault import named_inputs, raises_in_eager_mode, runs_with_batch_of_one, takes_any_keyword
from .example_run import ExampleAnswers, ExampleRun, Place, number_for, place_of, run_with_example
from .explored import Assumption, Exploration, Problem
from .failure import CaptureFailure, OperatorCall
from .given_inputs import with_unsupported_input
from .lost_transforms import TransformLost
from .lost_writes import WriteLost
from .plain_inputs import prepared_inputs

# How many traces are made, and how much work another one, with a branch turned, may follow: operators that
# were traced, in multiples of what the failed capture had traced, or this many.
MOST_TRACES = 3
MOST_WORK_BEFORE_ANOTHER = 2.0
LITTLE_WORK = 3_000
# A trace ends here: loops that the assumptions never end, models that take too long to explore.
MOST_ANSWERS = 2_000
MOST_OPERATORS = 500_000
# Sizes whose expressions grow without bound cost time and no operators: the one limit that is of the clock of
# the processor.
MOST_SECONDS = 60.0
# As often a place may be passed with one answer: equal layers should be treated alike, a loop must end.
_VISITS_ALIKE = 200

_SYMBOL = re.compile(r"\b(?:u|zuf)[0-9]+\b")


@one_at_a_time
def explore(
    module: nn.Module,
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any] | None = None,
    *,
    dynamic: DynamicDims | Any = None,
    tracing: Callable[[], AbstractContextManager[Any]] | None = None,
    work: int = 0,
    facts: ProgramFacts | None = None,
    assumed: Sequence[AssumedAnswer] = (),
    may_visit_rows: bool = True,
    example: ExampleRun | None = None,
) -> Exploration:
    """Find everything that blocks a capture by tracing past each failure under an assumption.

    Args:
        module, args, kwargs, dynamic: As for `capture`, which raised for a bad call.
        tracing: Makes the context that `capture` takes.
        work: How many operators the capture traced before it failed.
        facts, assumed: As for `capture`.
        may_visit_rows: As of the capture.
        example: A call with the example inputs: conditions are answered as it goes, if that is known.
    Returns:
        The problems and assumptions of the trace that found most. The same model returns the same, unless a
        trace takes longer than `MOST_SECONDS`.
    """
    args, kwargs, dynamic, restored = prepared_inputs(module, args, kwargs or {}, dynamic)
    shapes = torch_shapes(module, args, kwargs, dynamic, facts)
    enough = max(LITTLE_WORK, MOST_WORK_BEFORE_ANOTHER * work)
    done = 0
    turned: frozenset[Place] = frozenset()
    tried: list[Exploration] = []
    with restored:
        while len(tried) < MOST_TRACES:
            known = AssumedAnswers(assumed, traced.__code__, may_visit_rows)
            answers = ExampleAnswers(example or ExampleRun(), _Trace.run.__code__)
            trace = _Trace(turned, known, answers, time.thread_time() + MOST_SECONDS)
            with (
                answered_questions(trace.answer),
                unknowns_noted(trace.example.note),
                traced_past_faults(trace.may_go_on, before_each=trace.count),
                answered_numpy_reads(trace.may_read),
                iterated_tensors(known.rows),
                ended_after_trace(),
            ):
                tried.append(trace.run(module, args, kwargs, shapes, tracing() if tracing else None))
            if tried[-1].is_complete:
                known.check_asked()
            done += trace.operators
            if (
                tried[-1].is_complete
                or done > enough
                or trace.last_branch is None
                or trace.last_branch in turned
            ):
                break
            turned |= {trace.last_branch}
    return max(tried, key=_worth)


def _worth(found: Exploration) -> tuple[int, bool]:
    """Return the more problems the better: a turned branch may also lead out of `forward` at once."""
    return sum(not problem.is_last for problem in found.problems), found.is_complete


def capture_or_explore(
    module: nn.Module,
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any] | None = None,
    *,
    dynamic: DynamicDims | Any = None,
    strict: bool = False,
    tracing: Callable[[], AbstractContextManager[Any]] | None = None,
    on_failure: Callable[[CaptureFailure], None] | None = None,
    facts: ProgramFacts | None = None,
    assumed: Sequence[AssumedAnswer] = (),
    whole: ExportedProgram | None = None,
) -> tuple[Captured, Exploration | None]:
    """Return the result of `capture` and, if that is a failure, what `explore` finds.

    Raises:
        TypeError, ValueError: as `capture`.
    """
    with operators_counted() as work:
        captured = capture(
            module,
            args,
            kwargs,
            dynamic=dynamic,
            strict=strict,
            tracing=tracing,
            facts=facts,
            assumed=assumed,
            whole=whole,
        )
    if captured.failure is None:
        return captured, None
    if on_failure is not None:
        on_failure(captured.failure)
    if isinstance(captured.failure.error, (SubclassNotKept, WriteLost, TransformLost)):
        return captured, Exploration(is_complete=True)  # The trace itself came to its end.
    example = run_with_example(module, args, dict(kwargs or {}))
    found = explore(
        module,
        args,
        kwargs,
        dynamic=dynamic,
        tracing=tracing,
        work=work(),
        facts=facts,
        assumed=assumed,
        may_visit_rows=captured.may_visit_rows,
        example=example,
    )
    is_eager_fault = raises_in_eager_mode(module, example.error, captured.failure)
    batch_of_one = runs_with_batch_of_one(module, kwargs or {}) if is_eager_fault and not args else ()
    inputs = named_inputs(kwargs or {}) if not args and takes_any_keyword(module) else ()
    return captured, replace(found, is_eager_fault=is_eager_fault, batch_of_one=batch_of_one, inputs=inputs)


class _Limited(BaseException):
    """The trace has reached a limit. Not an `Exception`: a model's `except` must not keep it."""


@dataclass
class _Trace:
    """One trace: its answers, and what became of it.

    Args:
        turned: Places whose conditions are answered the other way round.
        known: Answers that the caller gave.
        example: Answers of a call with the example inputs.
        ends_at_s: When to give up, on the clock of `time.thread_time`.
    """

    turned: frozenset[Place]
    known: AssumedAnswers
    example: ExampleAnswers
    ends_at_s: float
    last_branch: Place | None = None
    operators: int = 0
    _problems: dict[Any, Problem] = field(default_factory=dict)
    _assumptions: dict[tuple[str, Span], Assumption] = field(default_factory=dict)
    # The frames are kept, so that no other one gets the identity of one that has ended.
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
        """Return the answer to what only data can tell; None outside of the user's code."""
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
        """Return what a caller can assume for an answer: that of the example inputs.

        Of a size that these do not tell, it is that nothing is empty.
        A number stands for one that is read, and not for a size: as many rows as a loop happens to run over.
        A loop over parts, of which one may be empty, is not one condition on a size.
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
        """Return whether a stand-in may be used for an operator."""
        frames = self._frames()
        if not frames:
            return False
        key = fault.operator if fault.kind == "kernel" else place_of(frames[-1][1])
        verb = "gets" if fault.kind == "devices" else "returns"
        call = OperatorCall(fault.operator, fault.overload, fault.args, fault.kwargs)
        self._note(
            fault.error,
            (fault.kind, key),
            frames,
            f"{fault.operator} {verb} {fault.remedy}",
            call=call if fault.kind == "kernel" else None,
        )
        return True

    def may_read(self, error: Exception) -> bool:
        """Return whether NumPy may get an array of ones."""
        frames = self._frames()
        if not frames:
            return False
        place = place_of(frames[-1][1])
        self._note(
            error, ("numpy", place), frames, f"`{source_text(frames[-1][1]) or 'numpy()'}` is all ones"
        )
        return True

    def _truth(self, question: Question, frame: FrameType, span: Span, expected: Answer | None) -> bool:
        """Return the answer of the example inputs, if that is known and not of a loop.

        Else no, but where shapes have to fit; the body of a loop is run once; what was turned is turned.

        A frame that asks again at one instruction is in a loop. One that does not end by itself gets both
        answers in turn.
        """
        if question.is_of_size and question.is_fit:
            return True
        place = place_of(span)
        self.last_branch = place
        is_loop = is_loop_test(span)
        if expected is not None and not is_loop:
            return bool(expected) ^ (place in self.turned)
        usual = is_loop and not is_negated(span)
        visits = self._visits[place] = self._visits.get(place, 0) + 1
        before = self._in_frame.get((id(frame), frame.f_lasti), 0)
        self._in_frame[id(frame), frame.f_lasti] = before + 1
        if is_in_for(span) and not question.is_of_size:
            return usual ^ (place in self.turned)
        is_again = before % 2 == 1 if not question.is_of_size else visits > _VISITS_ALIKE
        is_endless = visits > _VISITS_ALIKE and visits % 2 == 1
        return usual ^ (place in self.turned) ^ (is_again or is_endless)

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
        call: OperatorCall | None = None,
    ) -> None:
        """Keep a problem; one that a frame has again, in a loop or of one line, is the same."""
        frame, span = frames[-1]
        known = self._problems.get(key)
        if known is None:
            spans = tuple(span for _, span in frames)
            failure = replace(CaptureFailure.of(error, spans=spans), call=call, variables=frame.f_locals)
            self._problems[key] = Problem(failure, tuple(self._assumptions.values()))
        elif (key, id(frame), span.line) not in self._met:
            self._problems[key] = replace(known, count=known.count + 1)
        self._met[key, id(frame), span.line] = frame
        # Of equal layers once: they differ in the numbers of their symbols.
        made = Assumption(assumed, span, is_branch, answer)
        kept = self._assumptions.setdefault((_SYMBOL.sub("u", assumed), span), made)
        if kept.answer != answer:
            self._assumptions[_SYMBOL.sub("u", assumed), span] = replace(kept, answer=None)
