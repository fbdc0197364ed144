"""Conditions on data whose answer the caller knows: the trace goes that way, and the program checks it."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from pathlib import PurePath
from types import CodeType

from torch.export import ExportedProgram

from fakexport._torch.data_dependent_questions import (
    Answer,
    Question,
    answered_questions,
    named_assertions,
)
from fakexport.diagnostics import Span, is_loop_test, is_negated, is_test, source_text
from fakexport.error import FakexportError, InvalidValue
from fakexport.program import is_user_code
from fakexport.sources import Source

from .call_site import running_user_frames

__all__ = [
    "AssumedBranch",
    "AssumedBranches",
    "BadAssumption",
    "UncheckedAssumption",
    "parse_assumed",
    "with_assumed",
]

_WRITTEN = re.compile(
    r"(?P<file>.+?):(?P<line>[1-9][0-9]*)(?::(?P<column>[1-9][0-9]*))?=(?P<answer>[Tt]rue|[Ff]alse)"
)


class BadAssumption(InvalidValue):
    """What is assumed does not answer one condition on data."""


class UncheckedAssumption(FakexportError, RuntimeError):
    """The program would not check what was assumed for it: a fault of fakexport."""


@dataclass(frozen=True)
class AssumedBranch:
    """The answer of a condition of an `if` or an `assert`, for every input that the program takes.

    Args:
        file: Name of the source file, or the end of its path.
        line: Line of the condition, from 1.
        column: Its first character, from 1; None where the line has one condition.
        answer: What the condition is.
    """

    file: str
    line: int
    column: int | None
    answer: bool

    @property
    def place(self) -> str:
        """The place, as it was written."""
        return f"{self.file}:{self.line}" + ("" if self.column is None else f":{self.column}")

    @property
    def sentence(self) -> str:
        """What the report says of it."""
        return f"the condition at {self.place} is assumed to be {self.answer}; the program checks it"

    def is_at(self, span: Span) -> bool:
        """Return whether a place is meant."""
        ending = PurePath(self.file).parts
        return (
            span.line == self.line
            and self.column in (None, span.column)
            and PurePath(span.path).parts[-len(ending) :] == ending
        )


def parse_assumed(texts: Iterable[str]) -> tuple[AssumedBranch, ...]:
    """Return what texts such as `modeling_led.py:812=False` stand for.

    Raises:
        BadAssumption: A text has another form, or two are of one place.
    """
    found: dict[str, AssumedBranch] = {}
    for text in texts:
        written = _WRITTEN.fullmatch(text)
        if written is None:
            raise BadAssumption(
                f"{text!r} is not FILE:LINE=True or FILE:LINE=False, with the place of a condition"
            )
        column = None if written["column"] is None else int(written["column"])
        branch = AssumedBranch(
            written["file"], int(written["line"]), column, written["answer"].lower() == "true"
        )
        if branch.place in found:
            raise BadAssumption(f"the condition at {branch.place} is assumed twice")
        found[branch.place] = branch
    return tuple(found.values())


def with_assumed(
    source: Source, texts: Sequence[str], *, is_strict: bool
) -> tuple[Source, tuple[AssumedBranch, ...]]:
    """Return a source whose report says what is assumed, and the assumptions.

    Args:
        source: The model.
        texts: As for `parse_assumed`.
        is_strict: Whether TorchDynamo traces it.
    Raises:
        InvalidValue: As `parse_assumed`; or TorchDynamo traces the model, which takes no answers.
    """
    assumed = parse_assumed(texts)
    if assumed and is_strict:
        raise InvalidValue("conditions cannot be assumed in strict mode")
    return replace(source, assumptions=(*source.assumptions, *(each.sentence for each in assumed))), assumed


@dataclass
class AssumedBranches:
    """The assumptions of one capture, and what was asked.

    Args:
        branches: The assumptions.
        until: Code of the function that starts the model; frames outside of it are someone else's.
    """

    branches: Sequence[AssumedBranch]
    until: CodeType
    _asked: dict[AssumedBranch, dict[int | None, None]] = field(default_factory=dict)
    _assertions: dict[str, str] = field(default_factory=dict)
    _bounds: dict[str, str] = field(default_factory=dict)
    _loops: dict[AssumedBranch, None] = field(default_factory=dict)
    _said: str = ""
    _environment: object = None

    def answered(self) -> AbstractContextManager[None]:
        """Return the context around a trace in which the conditions have their answers."""
        return answered_questions(self.answer, self._asserted) if self.branches else nullcontext()

    def answer(self, question: Question) -> Answer | None:
        """Return the answer of a condition; None for another question."""
        if not self.branches or question.kind != "truth":
            return None
        is_asked = question.asking is not None and is_user_code(question.asking)
        if question.is_of_size and not is_asked:  # What an operator asks of its operands in such a line.
            return None
        frames = running_user_frames(self.until)
        if not frames or not is_test(span := frames[-1][1]):
            return None
        branch = next((each for each in self.branches if each.is_at(span)), None)
        if branch is None:
            return None
        if is_loop_test(span):
            self._loops[branch] = None
            return None
        if question.environment is not self._environment:  # Another trace, with numbers of its own.
            self._environment = question.environment
            for kept in (self._asked, self._assertions, self._bounds):
                kept.clear()
        self._asked.setdefault(branch, {})[span.column] = None
        shown = source_text(span) or question.expression
        self._said = (
            f"the program was exported for inputs with which `{shown}` is {branch.answer}, at {branch.place}"
        )
        return branch.answer ^ is_negated(span)

    def _asserted(self, question: Question, assertion: str, bounds: Sequence[str]) -> None:
        self._assertions[assertion] = self._said
        self._bounds.update(dict.fromkeys(bounds, self._said))

    def refuse_loops(self) -> None:
        """Raise `BadAssumption` if one is of the condition of a loop: no answer begins and ends it."""
        for branch in self._loops:
            raise BadAssumption(
                f"the condition at {branch.place} is that of a loop, which needs both answers"
            )

    def check_asked(self) -> None:
        """Raise `BadAssumption` if one is of no condition on data that was asked, or of more than one."""
        for branch in self.branches:
            columns = self._asked.get(branch, {})
            if not columns:
                raise BadAssumption(f"the line at {branch.place} has no condition on data: nothing to assume")
            if len(columns) > 1:
                places = " and ".join(f"{branch.place}:{column}" for column in columns)
                raise BadAssumption(
                    f"there is more than one condition at {branch.place}: assume {places} apart"
                )

    def check(self, program: ExportedProgram) -> None:
        """Name the assertions of a program that came of it.

        Raises:
            BadAssumption: As `check_asked`.
            UncheckedAssumption: An assertion is missing.
        """
        self.check_asked()
        if missing := self._assertions.keys() - named_assertions(program, self._bounds | self._assertions):
            raise UncheckedAssumption(f"the program does not assert {', '.join(sorted(missing))}")
