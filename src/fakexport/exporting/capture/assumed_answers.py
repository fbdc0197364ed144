"""Assumed and inferred values of data-dependent conditions and numbers. The program asserts them."""

from __future__ import annotations

import copy
import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import PurePath
from types import CodeType, FrameType

from torch import Tensor
from torch.export import ExportedProgram

from fakexport._torch.tracing.data_dependent_questions import (
    Answer,
    Asserted,
    Question,
    Unasserted,
    answered_numpy_reads,
    answered_questions,
    drop_unused_truths,
    iterated_tensors,
    named_assertions,
)
from fakexport.error import FakexportError, InvalidValue
from fakexport.models.sources import Source
from fakexport.rules.diagnostics import Span, condition_at, is_loop_test, is_negated, source_text

from .call_site import is_asked_by_user, running_user_frames
from .failure import is_asking_for_truth
from .implied_answers import implied_answer, implied_rows, is_in_loop

_WRITTEN = re.compile(
    r"(?P<file>.+?):(?P<line>[1-9][0-9]{0,8})(?::(?P<column>[1-9][0-9]{0,8}))?="
    r"(?P<answer>[Tt]rue|[Ff]alse|-?[0-9]{1,18})"
)


class BadAssumption(InvalidValue):
    """An assumption is malformed, impossible, or does not match exactly one condition or number."""


class UncheckedAssumption(FakexportError, RuntimeError):
    """The program would not assert an assumption. This is an internal error of fakexport."""


@dataclass(frozen=True)
class AssumedAnswer:
    """The value that a condition or number at a line of the model is assumed to have for every input.

    Args:
        file: Name of the source file, or the end of its path.
        line: Line of the condition or of the number, starting at 1.
        column: Column of the condition or number, starting at 1. None if the line has only one condition or
            number.
        answer: The assumed value: True or False for the condition of an `if` or `assert`, or the integer that
            is read from a tensor.
    """

    file: str
    line: int
    column: int | None
    answer: bool | int

    @property
    def place(self) -> str:
        """The position in the user's syntax: `FILE:LINE` or `FILE:LINE:COLUMN`."""
        return f"{self.file}:{self.line}" + ("" if self.column is None else f":{self.column}")

    @property
    def kind(self) -> str:
        """`condition` or `number`."""
        return "condition" if isinstance(self.answer, bool) else "number"

    @property
    def sentence(self) -> str:
        """The sentence that reports the assumption."""
        return f"the {self.kind} at {self.place} is assumed to be {self.answer}; the program checks it"

    def is_at(self, span: Span) -> bool:
        """Return whether the assumption is about the line and column of `span`."""
        ending = PurePath(self.file).parts
        return (
            span.line == self.line
            and self.column in (None, span.column)
            and PurePath(span.path).parts[-len(ending) :] == ending
        )

    def is_of(self, question: Question) -> bool:
        """Return whether the assumed value has the type that the query returns: bool or int."""
        return question.kind == ("truth" if isinstance(self.answer, bool) else "integer")


def parse_assumed(texts: Iterable[str]) -> tuple[AssumedAnswer, ...]:
    """Parse texts such as `modeling_led.py:812=False` or `model.py:9=7`.

    Raises:
        BadAssumption: a text does not have this form, or two texts have the same file, line and column.
    """
    found: dict[str, AssumedAnswer] = {}
    for text in texts:
        written = _WRITTEN.fullmatch(text)
        if written is None:
            raise BadAssumption(
                f"invalid assumption {text!r}: write FILE:LINE=True or FILE:LINE=False for a condition, "
                "or FILE:LINE=INTEGER for a number"
            )
        column = None if written["column"] is None else int(written["column"])
        said = written["answer"].lower()
        answer = said == "true" if said in ("true", "false") else int(said)
        assumed = AssumedAnswer(written["file"], int(written["line"]), column, answer)
        if assumed.place in found:
            raise BadAssumption(
                f"there are two assumptions for the {assumed.kind} at {assumed.place}: keep one"
            )
        found[assumed.place] = assumed
    return tuple(found.values())


def with_assumed(
    source: Source, texts: Sequence[str], *, is_strict: bool
) -> tuple[Source, tuple[AssumedAnswer, ...]]:
    """Parse the assumptions. Return a copy of the source whose report lists them, and the assumptions.

    Raises:
        InvalidValue: as for `parse_assumed`, or `is_strict` is set: TorchDynamo cannot use assumptions.
    """
    assumed = parse_assumed(texts)
    if assumed and is_strict:
        raise InvalidValue("conditions and numbers cannot be assumed in strict mode")
    return replace(source, assumptions=(*source.assumptions, *(each.sentence for each in assumed))), assumed


def can_be_assumed(question: Question, span: Span) -> bool:
    """Return whether an assumption at the line of `span` can determine the result of a data-dependent query.

    A condition must be the test of an `if` or an `assert`. A size must be queried by the line itself, not by
    a torch operator that the line calls.
    """
    if question.is_of_size and not is_asked_by_user(question):
        return False
    return question.kind == "integer" or (
        question.kind == "truth" and condition_at(span) is not None and not is_loop_test(span)
    )


@dataclass
class AssumedAnswers:
    """The assumptions, data-dependent queries and inferred values of one capture.

    Args:
        answers: The assumptions.
        until: Code object of the function that calls the model. Frames of its callers do not belong to the
            model.
        may_visit_rows: Whether a loop over the rows that a mask selects may run over all rows instead.

    `has_implied` is whether the last trace used an inferred value that the program asserts.
    """

    answers: Sequence[AssumedAnswer]
    until: CodeType
    may_visit_rows: bool = True
    _asked: dict[AssumedAnswer, dict[int | None, None]] = field(default_factory=dict)
    _assertions: dict[Asserted, str] = field(default_factory=dict)
    _numbers: dict[tuple[FrameType, AssumedAnswer, int | None], str] = field(default_factory=dict)
    _refused: dict[str, None] = field(default_factory=dict)
    _said: str = ""
    _unanswered: list[Exception] = field(default_factory=list)
    _is_truth_unused: bool = False
    has_implied: bool = field(default=False, init=False)
    _loops: set[tuple[CodeType, int]] = field(default_factory=set)

    @contextmanager
    def answered(self) -> Iterator[None]:
        """Enter a context for a trace in which data-dependent queries return assumed or inferred values."""
        with (
            answered_questions(self.answer, self._asserted),
            answered_numpy_reads(self._is_read),
            iterated_tensors(self.rows),
        ):
            yield

    def begin(self) -> None:
        """Start the next trace, and discard what was recorded in the previous trace."""
        self.has_implied = self._is_truth_unused = False
        self._loops.clear()
        self._unanswered.clear()
        for kept in (self._asked, self._assertions, self._numbers):
            kept.clear()

    @contextmanager
    def set_aside(self) -> Iterator[None]:
        """Enter a context for an additional trace. On exit, restore the records of the previous trace."""
        before = {name: copy.copy(value) for name, value in vars(self).items()}
        try:
            yield
        finally:
            vars(self).update(before)

    def check_unanswered(self) -> None:
        """After a complete trace, raise the error of a data-dependent query in user code that had no value.

        The trace is complete only because the model caught this error. The program would therefore contain
        the code path of the `except`.
        """
        for error in self._unanswered:
            raise error

    def answer(self, question: Question) -> Answer | Unasserted | None:
        """Return the assumed or inferred result of a data-dependent query, or None if it is unknown."""
        frames = running_user_frames(self.until)
        if not frames:
            return None
        frame, span = frames[-1]
        assumed = next((each for each in self.answers if each.is_of(question) and each.is_at(span)), None)
        answer: Answer | Unasserted | None
        if assumed is None:
            answer = self._answer_implied(question, frames)
        else:
            answer = self._answer_assumed(question, frame, span, assumed)
        is_number = question.kind != "truth" and not question.is_of_size
        if answer is None and (is_asked_by_user(question) or is_asking_for_truth(frame) or is_number):
            self._unanswered.append(question.error)
        return answer

    def _is_read(self, error: Exception) -> bool:
        if running_user_frames(self.until):
            self._unanswered.append(error)
        return False

    def rows(self, tensor: Tensor) -> Sequence[object] | None:
        """Return all rows of a mask, for a loop over `tensor`, which contains the rows that the mask selects.

        Return None if the loop must not run over all rows.
        """
        frames = running_user_frames(self.until) if self.may_visit_rows else []
        found = implied_rows(tensor, frames) if frames else None
        if found is not None:
            frame, span = frames[-1]
            self._loops.add((frame.f_code, span.line))
        return found

    def has_failed_in_rows(self, error: BaseException) -> bool:
        """Return whether an error occurred in a loop over all rows of a mask. If so, disable such loops.

        An extra row of the mask that no input selects can cause such an error.
        """
        is_of_loop = is_in_loop(error, self._loops)
        self.may_visit_rows &= not is_of_loop
        return is_of_loop

    def _answer_assumed(
        self, question: Question, frame: FrameType, span: Span, assumed: AssumedAnswer
    ) -> Answer | None:
        if not can_be_assumed(question, span):
            if is_loop_test(span):
                self._refuse(
                    f"the condition at {assumed.place} controls a loop: its value must change for the "
                    "loop to end, so it cannot be assumed"
                )
            return None
        self._asked.setdefault(assumed, {})[span.column] = None
        shown = source_text(span) or question.expression
        self._said = (
            f"the program was exported under the assumption that `{shown}` is {assumed.answer}, "
            f"at {assumed.place}"
        )
        if question.kind == "truth":
            return assumed.answer ^ is_negated(span)
        return assumed.answer if self._is_one_number((frame, assumed, span.column), question) else None

    def _answer_implied(
        self, question: Question, frames: Sequence[tuple[FrameType, Span]]
    ) -> bool | Unasserted | None:
        implied = implied_answer(question, frames)
        if implied is None:
            return None
        if implied.said is None:
            self._is_truth_unused = True
            return Unasserted(implied.answer)
        self.has_implied = True
        self._said = implied.said
        return implied.answer

    def _is_one_number(self, place: tuple[FrameType, AssumedAnswer, int | None], question: Question) -> bool:
        """Return whether a line reads only one number per call, and this number can have the assumed value.

        A line that reads several numbers, in a loop or from a list, usually reads different values.
        """
        _, assumed, _ = place
        low, high = question.low, question.high
        if self._numbers.setdefault(place, question.expression) != question.expression:
            self._refuse(
                f"the line at {assumed.place} reads more than one number per call, in a loop or "
                "from a list: one value cannot be assumed for all of them"
            )
        elif (low is not None and assumed.answer < low) or (high is not None and assumed.answer > high):
            known_as = f"at least {low}" if low is not None and assumed.answer < low else f"at most {high}"
            self._refuse(
                f"the number at {assumed.place} cannot be {assumed.answer}: it is known to be {known_as}"
            )
        else:
            return True
        return False

    def _refuse(self, reason: str) -> None:
        self._refused[reason] = None

    def _asserted(self, question: Question, assertion: Asserted) -> None:
        self._assertions[assertion] = self._said

    def check_answered(self) -> None:
        """Raise `BadAssumption` if a condition or number cannot be assumed to have the given value."""
        for reason in self._refused:
            raise BadAssumption(reason)

    def check_asked(self) -> None:
        """Raise `BadAssumption` unless each assumption matches one data-dependent condition or number."""
        self.check_answered()
        for assumed in self.answers:
            columns = self._asked.get(assumed, {})
            if not columns:
                what = (
                    "data-dependent condition"
                    if assumed.kind == "condition"
                    else "integer that Python reads from a tensor"
                )
                raise BadAssumption(
                    f"the line at {assumed.place} has no {what}, so there is nothing to assume"
                )
            if len(columns) > 1:
                places = " and ".join(f"{assumed.place}:{column}" for column in columns)
                raise BadAssumption(
                    f"there is more than one {assumed.kind} at {assumed.place}: write separate "
                    f"assumptions for {places}"
                )

    def check(self, program: ExportedProgram) -> None:
        """Check that the program asserts all assumptions, and set the messages of these assertions.

        If the value of a condition was inferred without an assertion, also remove unused reads of conditions.

        Raises:
            BadAssumption: as for `check_asked`.
            UncheckedAssumption: an assertion is missing.
        """
        self.check_asked()
        if self._is_truth_unused:
            drop_unused_truths(program)
        names = {
            bound: said for each, said in self._assertions.items() for bound in (*each.bounds, *each.same)
        }
        names |= {each.text: said for each, said in self._assertions.items()}
        found = named_assertions(program, names)
        missing = sorted(
            each.text
            for each in self._assertions
            if each.text not in found and not (each.same and each.same <= found)
        )
        if missing:
            raise UncheckedAssumption(f"the program does not assert {', '.join(missing)}")
