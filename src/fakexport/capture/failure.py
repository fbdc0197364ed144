"""What is known about a capture that failed."""

from __future__ import annotations

import dis
import itertools
import linecache
import re
import traceback
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from types import CodeType, FrameType, TracebackType
from typing import Any

from fakexport.diagnostics import Span, whole_comprehension, with_columns
from fakexport.program import is_own_code, is_user_code


@dataclass(frozen=True)
class GuardFact:
    """A condition on sizes that the model imposed while it was traced.

    Args:
        expression: Such as `Eq(s77, 4)`.
        span: The user's line that imposed it, where torch kept it.
        dims: The dimensions of inputs that it is about: `x.0`.
    """

    expression: str
    span: Span | None
    dims: tuple[str, ...] = ()


@dataclass(frozen=True)
class OperatorCall:
    """The call of an operator that has no fake kernel.

    Args:
        operator: `acme::scale`.
        overload: The operator itself.
        args, kwargs: What it was called with: fake tensors, numbers.
    """

    operator: str
    overload: Any
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]


@dataclass(frozen=True)
class CaptureFailure:
    """Why no program was captured.

    Args:
        error_types: Class names of the error and of its causes, outermost first.
        messages: Their texts, in the same order.
        spans: Frames of user code in the traceback of the innermost error that has any, outermost first.
        guards: Conditions on sizes met before the failure.
        error: The error itself, for a debugger and for `--debug`; not part of any comparison.
        call: The call of an operator without a fake kernel, where an exploration met it; neither.
        variables: The local variables of the innermost frame, where the error does not know it; neither.
    """

    error_types: tuple[str, ...]
    messages: tuple[str, ...]
    spans: tuple[Span, ...]
    guards: tuple[GuardFact, ...] = ()
    error: BaseException | None = field(default=None, repr=False, compare=False)
    call: OperatorCall | None = field(default=None, repr=False, compare=False)
    variables: Mapping[str, Any] = field(default_factory=dict, repr=False, compare=False)

    @property
    def culprit(self) -> Span | None:
        """The innermost frame of user code, with columns where the source is at hand, or None."""
        return with_columns(self.spans[-1]) if self.spans else None

    @property
    def culprit_locals(self) -> Mapping[str, Any]:
        """The local variables of the innermost frame of user code; none where the error does not say."""
        found = self.variables
        for link in _chain(self.error) if self.spans else ():
            traced = link.__traceback__
            while traced is not None:
                if (traced.tb_frame.f_code.co_filename, traced.tb_lineno) == (
                    self.spans[-1].path,
                    self.spans[-1].line,
                ):
                    found = traced.tb_frame.f_locals
                traced = traced.tb_next
        return found

    @property
    def is_of_symbols(self) -> bool:
        """Whether torch or sympy failed at symbolic numbers, below the user's code."""
        if self.error is None or not _SYMBOLIC.search(" ".join((*self.error_types, *self.messages))):
            return False
        innermost = next(reversed(list(_code_of(self.error.__traceback__))), None)
        return innermost is not None and not is_user_code(innermost)

    @classmethod
    def of(
        cls, error: BaseException, *, guards: tuple[GuardFact, ...] = (), spans: tuple[Span, ...] = ()
    ) -> CaptureFailure:
        """Return what an error says.

        Args:
            guards: As above.
            spans: Where it arose, for an error that was caught before it reached the user's code.
        """
        chain = list(_chain(error))
        own = [spans] if spans else [user_spans(link) for link in chain]
        return cls(
            error_types=tuple(type(link).__name__ for link in chain),
            messages=tuple(str(link) for link in chain),
            spans=next((found for found in reversed(own) if found), ()) or _spans_in_text(chain),
            guards=guards,
            error=error,
        )


# A recursion is one of expressions that grow; sympy's errors name their own classes.
_SYMBOLIC = re.compile(r"RecursionError|Sym(?:Int|Float|Bool)|sympy|relational|\b(?:u|zuf)\d+\b")


def _code_of(traced: TracebackType | None) -> Iterator[str]:
    while traced is not None:
        yield traced.tb_frame.f_code.co_filename
        traced = traced.tb_next


def _chain(error: BaseException | None) -> Iterator[BaseException]:
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        yield error
        error = error.__cause__ or (None if error.__suppress_context__ else error.__context__)


_FRAME_IN_TEXT = re.compile(r'File "(?P<path>[^"\n]+)", line (?P<line>\d+), in (?P<function>\S+?),?(?=\s)')


def _spans_in_text(errors: Iterable[BaseException]) -> tuple[Span, ...]:
    """Return user frames that torch wrote into a message: strict export raises far from user code."""
    for error in errors:
        found = [m for trace in str(error).split("\n\n") for m in _frames_of_the_model(trace)]
        if found:
            return tuple(
                Span(m["path"], int(m["line"]), function=m["function"], origin="stack_trace") for m in found
            )
    frames = [getattr(error, "innermost_user_frame_summary", None) for error in errors]
    frames += [frame for error in errors for frame in getattr(error, "real_stack", None) or ()]
    return tuple(
        _span_of_summary(frame) for frame in frames if frame is not None and is_user_code(frame.filename)
    )


def _frames_of_the_model(trace: str) -> Iterator[re.Match[str]]:
    """Return the user frames of one stack trace.

    Those outside of our own frames belong to who called fakexport.
    """
    frames = list(_FRAME_IN_TEXT.finditer(f"{trace}\n"))
    own = max((index for index, m in enumerate(frames) if is_own_code(m["path"])), default=-1)
    return (frame for frame in frames[own + 1 :] if is_user_code(frame["path"]))


def user_spans(error: BaseException) -> tuple[Span, ...]:
    """Return the frames of an error's own traceback that belong to user code, outermost first, with columns.

    Frames of torch, of fakexport, of the standard library and of generated code are left out; model
    libraries such as transformers count as user code.
    """
    return tuple(_spans(error))


def _spans(error: BaseException) -> Iterator[Span]:
    traced = error.__traceback__
    while traced is not None:
        code = traced.tb_frame.f_code
        if is_user_code(code.co_filename):
            yield span_at(code, traced.tb_lasti, traced.tb_lineno)
        traced = traced.tb_next


def span_at(code: CodeType, instruction: int, line: int | None) -> Span:
    """Return the place of an instruction, with columns where Python knows them.

    A conditional jump has the place of the whole statement: of `if a is not None and b.any():` it does not
    tell which operand was asked. What was computed last before it does.
    """
    index = _computed_last(code, instruction)
    start, end, column, end_column = next(
        itertools.islice(code.co_positions(), max(index, 0), None), (None, None, None, None)
    )
    start = start or line or 1
    span = Span(
        code.co_filename,
        start,
        *_columns(code.co_filename, start, end, column, end_column),
        function=code.co_name,
        origin="traceback",
    )
    return whole_comprehension(span) if _name_at(code, index) == "GET_ITER" else span


def is_asking_for_truth(frame: FrameType) -> bool:
    """Return whether a frame is about to go one way or the other, and asks only for what decides it.

    What computes the condition asks too: `x.shape != y.shape` compares size by size, `any(masks)` asks each.
    """
    return _asks_for_truth(_name_at(frame.f_code, frame.f_lasti // 2))


def _computed_last(code: CodeType, instruction: int) -> int:
    """Return the index of an instruction, or for one that asks for a truth, of the one that computed it.

    Of `y or x`, Python 3.12 copies `y` before it asks: the copy has the place of the whole expression too.
    """
    index = instruction // 2
    if not _asks_for_truth(_name_at(code, index)):
        return index
    index -= 1
    while _name_at(code, index) == "COPY":
        index -= 1
    return index


def _asks_for_truth(name: str) -> bool:
    return name == "TO_BOOL" or ("JUMP" in name and ("IF_TRUE" in name or "IF_FALSE" in name))


def _name_at(code: CodeType, index: int) -> str:
    return dis.opname[code.co_code[2 * index]] if index >= 0 else ""


def _columns(
    path: str, line: int, end_line: int | None, start: int | None, end: int | None
) -> tuple[int | None, int | None]:
    """Columns from 1 in characters; Python reports bytes of UTF-8 from 0."""
    if start is None or end is None:
        return None, None
    text = linecache.getline(path, line).encode()
    column = len(text[:start].decode(errors="replace")) + 1
    if end_line != line:
        return column, None
    end_column = len(text[:end].decode(errors="replace")) + 1
    return column, end_column if end_column > column else None


def _span_of_summary(frame: traceback.FrameSummary) -> Span:
    """Return the line of a frame that torch kept; it has no columns."""
    return Span(frame.filename, frame.lineno or 1, function=frame.name, origin="traceback")
