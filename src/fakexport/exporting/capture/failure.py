"""The facts about a failed capture."""

from __future__ import annotations

import dis
import itertools
import linecache
import re
import traceback
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from types import CodeType, FrameType
from typing import Any

from fakexport._torch.tracing.guard_locations import Guard
from fakexport._torch.tracing.operator_faults import OperatorFault
from fakexport.exporting.program import is_own_code, is_user_code
from fakexport.rules.diagnostics import Span, whole_comprehension, with_columns


@dataclass(frozen=True)
class CaptureFailure:
    """The reason why no program was captured.

    Args:
        error_types: Class names of the error and of its causes, outermost first.
        messages: The messages of these errors, in the same order.
        spans: Frames of user code, outermost first. They come from the innermost error whose traceback has
            such frames.
        guards: Shape guards imposed before the failure.
        error: The error itself, for a debugger and for `--debug`. Ignored in comparisons.
        call: The call of an operator without a fake kernel, if an exploration found one. Ignored in
            comparisons.
        variables: The local variables of the innermost frame, if the error's traceback lacks them. Ignored in
            comparisons.
    """

    error_types: tuple[str, ...]
    messages: tuple[str, ...]
    spans: tuple[Span, ...]
    guards: tuple[Guard, ...] = ()
    error: BaseException | None = field(default=None, repr=False, compare=False)
    call: OperatorFault | None = field(default=None, repr=False, compare=False)
    variables: Mapping[str, Any] = field(default_factory=dict, repr=False, compare=False)

    @property
    def culprit(self) -> Span | None:
        """The innermost frame of user code, with columns if the source is available, or None."""
        return with_columns(self.spans[-1]) if self.spans else None

    @property
    def culprit_locals(self) -> Mapping[str, Any]:
        """The local variables of the innermost frame of user code. Empty if they are unknown."""
        found = self.variables
        for link in _chain(self.error) if self.spans else ():
            for frame, line in traceback.walk_tb(link.__traceback__):
                if (frame.f_code.co_filename, line) == (self.spans[-1].path, self.spans[-1].line):
                    found = frame.f_locals
        return found

    @property
    def is_of_symbols(self) -> bool:
        """Whether torch or sympy, rather than user code, raised the error because of symbolic numbers."""
        if self.error is None or not _SYMBOLIC.search(" ".join((*self.error_types, *self.messages))):
            return False
        *_, innermost = (None, *(frame for frame, _ in traceback.walk_tb(self.error.__traceback__)))
        return innermost is not None and not is_user_code(innermost.f_code.co_filename)

    @classmethod
    def of(
        cls, error: BaseException, *, guards: tuple[Guard, ...] = (), spans: tuple[Span, ...] = ()
    ) -> CaptureFailure:
        """Return the failure for an error.

        Args:
            guards: Shape guards imposed before the failure.
            spans: The frames of user code, for an error that was caught before it reached user code.
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


# Growing expressions cause a RecursionError; sympy's errors have their own classes.
_SYMBOLIC = re.compile(r"RecursionError|Sym(?:Int|Float|Bool)|sympy|relational|\b(?:u|zuf)\d+\b")


def guard_span(guard: Guard) -> Span | None:
    """Return the user's line that imposed a shape guard, or None if torch did not record it."""
    place = next((place for place in reversed(guard.places) if is_user_code(place[0])), None)
    return None if place is None else Span(place[0], place[1], function=place[2], origin="guard")


def _chain(error: BaseException | None) -> Iterator[BaseException]:
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        yield error
        error = error.__cause__ or (None if error.__suppress_context__ else error.__context__)


_FRAME_IN_TEXT = re.compile(r'File "(?P<path>[^"\n]+)", line (?P<line>\d+), in (?P<function>\S+?),?(?=\s)')


def _spans_in_text(errors: Iterable[BaseException]) -> tuple[Span, ...]:
    """Return the user frames that torch's message lists.

    Strict export raises its errors outside of user code, so their tracebacks contain no user frames.
    """
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
    """Return the user frames in the text of one stack trace.

    Frames of the code that called fakexport are omitted.
    """
    frames = list(_FRAME_IN_TEXT.finditer(f"{trace}\n"))
    own = max((index for index, m in enumerate(frames) if is_own_code(m["path"])), default=-1)
    return (frame for frame in frames[own + 1 :] if is_user_code(frame["path"]))


def user_spans(error: BaseException) -> tuple[Span, ...]:
    """Return the frames of user code in an error's own traceback, outermost first, with columns.

    Frames of torch, fakexport, the standard library and generated code are omitted; model libraries such as
    transformers count as user code.
    """
    spans, traced = list[Span](), error.__traceback__
    while traced is not None:
        code = traced.tb_frame.f_code
        if is_user_code(code.co_filename):
            spans.append(span_at(code, traced.tb_lasti, traced.tb_lineno))
        traced = traced.tb_next
    return tuple(spans)


def span_at(code: CodeType, instruction: int, line: int | None) -> Span:
    """Return the source position of an instruction, with columns if Python recorded them.

    For a conditional jump, return the position of the instruction that computed the tested operand. The
    position of the jump covers the whole statement, so in `if a is not None and b.any():` it does not show
    which operand is tested.
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
    """Return whether a frame is at a branch instruction, which only tests whether a value is true.

    While the condition itself is computed, other values may be tested: `x.shape != y.shape` compares each
    size, and `any(masks)` tests each item.
    """
    return _asks_for_truth(_name_at(frame.f_code, frame.f_lasti // 2))


def _computed_last(code: CodeType, instruction: int) -> int:
    """Return the index of the instruction that computed the tested operand.

    For a conditional jump, this is the previous instruction; otherwise, it is the instruction itself. For `y
    or x`, Python 3.12 also copies `y` before the jump. The copy is skipped, because its position covers the
    whole expression.
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
    """Convert Python's columns (UTF-8 bytes, starting at 0) to characters, starting at 1."""
    if start is None or end is None:
        return None, None
    text = linecache.getline(path, line).encode()
    column = len(text[:start].decode(errors="replace")) + 1
    if end_line != line:
        return column, None
    end_column = len(text[:end].decode(errors="replace")) + 1
    return column, end_column if end_column > column else None


def _span_of_summary(frame: traceback.FrameSummary) -> Span:
    return Span(frame.filename, frame.lineno or 1, function=frame.name, origin="traceback")
