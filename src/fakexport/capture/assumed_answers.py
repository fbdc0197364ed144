"""Answers to what data decide: conditions and integers that the caller knows, and conditions that the code
implies. The trace takes them so, and the program checks them.
"""

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

from fakexport._torch.data_dependent_questions import (
    Answer,
    Asserted,
    Question,
    Unasserted,
    answered_questions,
    drop_unused_truths,
    named_assertions,
)
from fakexport._torch.iterated_tensors import iterated_tensors
from fakexport._torch.numpy_reads import answered_numpy_reads
from fakexport.diagnostics import Span, is_loop_test, is_negated, is_test, source_text
from fakexport.error import FakexportError, InvalidValue
from fakexport.sources import Source

from .call_site import is_asked_by_user, running_user_frames
from .failure import is_asking_for_truth
from .implied_answers import implied_answer, implied_rows, is_in_loop

_WRITTEN = re.compile(
    r"(?P<file>.+?):(?P<line>[1-9][0-9]{0,8})(?::(?P<column>[1-9][0-9]{0,8}))?="
    r"(?P<answer>[Tt]rue|[Ff]alse|-?[0-9]{1,18})"
)


class BadAssumption(InvalidValue):
    """What is assumed does not answer one question about data."""


class UncheckedAssumption(FakexportError, RuntimeError):
    """The program would not check what was assumed for it: a fault of fakexport."""


@dataclass(frozen=True)
class AssumedAnswer:
    """What holds at a line for every input that the program takes.

    Args:
        file: Name of the source file, or the end of its path.
        line: Line of the condition or of the number, from 1.
        column: Its first character, from 1; None where the line has one.
        answer: What the condition of an `if` or an `assert` is; or the integer that Python reads from data.
    """

    file: str
    line: int
    column: int | None
    answer: bool | int

    @property
    def place(self) -> str:
        """The place, as it was written."""
        return f"{self.file}:{self.line}" + ("" if self.column is None else f":{self.column}")

    @property
    def kind(self) -> str:
        """What is at the place."""
        return "condition" if isinstance(self.answer, bool) else "number"

    @property
    def sentence(self) -> str:
        """What the report says of it."""
        return f"the {self.kind} at {self.place} is assumed to be {self.answer}; the program checks it"

    def is_at(self, span: Span) -> bool:
        """Return whether a place is meant."""
        ending = PurePath(self.file).parts
        return (
            span.line == self.line
            and self.column in (None, span.column)
            and PurePath(span.path).parts[-len(ending) :] == ending
        )

    def is_of(self, question: Question) -> bool:
        """Return whether it can answer a question: a truth value a condition, an integer a number."""
        return question.kind == ("truth" if isinstance(self.answer, bool) else "integer")


def parse_assumed(texts: Iterable[str]) -> tuple[AssumedAnswer, ...]:
    """Return what texts such as `modeling_led.py:812=False` or `model.py:9=7` stand for.

    Raises:
        BadAssumption: A text has another form, or two are of one place.
    """
    found: dict[str, AssumedAnswer] = {}
    for text in texts:
        written = _WRITTEN.fullmatch(text)
        if written is None:
            raise BadAssumption(
                f"{text!r} is not FILE:LINE=True, FILE:LINE=False or FILE:LINE=INTEGER, with the place of a "
                "condition or of a number"
            )
        column = None if written["column"] is None else int(written["column"])
        said = written["answer"].lower()
        answer = said == "true" if said in ("true", "false") else int(said)
        assumed = AssumedAnswer(written["file"], int(written["line"]), column, answer)
        if assumed.place in found:
            raise BadAssumption(f"the {assumed.kind} at {assumed.place} is assumed twice")
        found[assumed.place] = assumed
    return tuple(found.values())


def with_assumed(
    source: Source, texts: Sequence[str], *, is_strict: bool
) -> tuple[Source, tuple[AssumedAnswer, ...]]:
    """Return a source whose report says what is assumed, and the assumptions.

    Raises:
        InvalidValue: As `parse_assumed`; or TorchDynamo traces the model, which takes no answers.
    """
    assumed = parse_assumed(texts)
    if assumed and is_strict:
        raise InvalidValue("conditions and numbers cannot be assumed in strict mode")
    return replace(source, assumptions=(*source.assumptions, *(each.sentence for each in assumed))), assumed


def can_be_assumed(question: Question, span: Span) -> bool:
    """Return whether an answer at a line would be one of this question.

    A condition has to be that of an `if` or an `assert`. What an operator of torch asks of the sizes of its
    operands in such a line is not what the line says.
    """
    if question.is_of_size and not is_asked_by_user(question):
        return False
    return question.kind == "integer" or (
        question.kind == "truth" and is_test(span) and not is_loop_test(span)
    )


@dataclass
class AssumedAnswers:
    """The assumptions of one capture, what was asked, and what was answered without an assumption.

    Args:
        answers: The assumptions.
        until: Code of the function that starts the model; frames outside of it are someone else's.
        may_visit_rows: Let loops visit every row of a mask instead of those that are set.

    `has_implied` is whether the last trace took an answer that the code implies, and that is asserted.
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
        """Enter the context around a trace in which conditions and numbers have their answers."""
        with (
            answered_questions(self.answer, self._asserted),
            answered_numpy_reads(self._is_read),
            iterated_tensors(self.rows),
        ):
            yield

    def begin(self) -> None:
        """Begin another trace, with numbers of its own."""
        self.has_implied = self._is_truth_unused = False
        self._loops.clear()
        self._unanswered.clear()
        for kept in (self._asked, self._assertions, self._numbers):
            kept.clear()

    @contextmanager
    def set_aside(self) -> Iterator[None]:
        """Enter a context around another trace, after which all is as the last trace left it."""
        before = {name: copy.copy(value) for name, value in vars(self).items()}
        try:
            yield
        finally:
            vars(self).update(before)

    def check_unanswered(self) -> None:
        """Raise what torch raised in user code for want of an answer, if a trace went on all the same.

        It does where an `except` of the model catches it: the program would be that of the error.
        """
        for error in self._unanswered:
            raise error

    def answer(self, question: Question) -> Answer | Unasserted | None:
        """Return the answer of a question; None for one that nothing was assumed for or implies."""
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
        """Return every row that a loop may visit; None: it runs over the tensor."""
        frames = running_user_frames(self.until) if self.may_visit_rows else []
        found = implied_rows(tensor, frames) if frames else None
        if found is not None:
            frame, span = frames[-1]
            self._loops.add((frame.f_code, span.line))
        return found

    def has_failed_in_rows(self, error: BaseException) -> bool:
        """Return whether an error is of a loop that visited rows which no data may set, and allow no more.

        As where a mask has one row too many.
        """
        is_of_loop = is_in_loop(error, self._loops)
        self.may_visit_rows &= not is_of_loop
        return is_of_loop

    def _answer_assumed(
        self, question: Question, frame: FrameType, span: Span, assumed: AssumedAnswer
    ) -> Answer | None:
        if not can_be_assumed(question, span):
            if is_loop_test(span):
                self._refuse(f"the condition at {assumed.place} is that of a loop, which needs both answers")
            return None
        self._asked.setdefault(assumed, {})[span.column] = None
        shown = source_text(span) or question.expression
        self._said = (
            f"the program was exported for inputs with which `{shown}` is {assumed.answer}, "
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
        """Return whether a number is the only one that a line reads in a call, and can have that value.

        A line in a loop, or over a list, that reads several has a number for each, as a rule another one.
        """
        _, assumed, _ = place
        low, high = question.low, question.high
        if self._numbers.setdefault(place, question.expression) != question.expression:
            self._refuse(
                f"the line at {assumed.place} reads more than one number in a call, as in a loop or from a "
                "list: they cannot be assumed to be one"
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
        """Raise `BadAssumption` if a question at a line of an assumption could not have that answer."""
        for reason in self._refused:
            raise BadAssumption(reason)

    def check_asked(self) -> None:
        """Raise `BadAssumption` if one is of no question about data that was asked, or of more than one."""
        self.check_answered()
        for assumed in self.answers:
            columns = self._asked.get(assumed, {})
            if not columns:
                what = (
                    "condition on data"
                    if assumed.kind == "condition"
                    else "integer that Python reads from data"
                )
                raise BadAssumption(f"the line at {assumed.place} has no {what}: nothing to assume")
            if len(columns) > 1:
                places = " and ".join(f"{assumed.place}:{column}" for column in columns)
                raise BadAssumption(
                    f"there is more than one {assumed.kind} at {assumed.place}: assume {places} apart"
                )

    def check(self, program: ExportedProgram) -> None:
        """Name the assertions of a program that came of it, and drop the questions that made no difference.

        Raises:
            BadAssumption: As `check_asked`.
            UncheckedAssumption: An assertion is missing.
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
