"""What is known about a capture that failed."""

from __future__ import annotations

import linecache
import re
import traceback
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from fakexport.diagnostics import Span, with_columns
from fakexport.program.source_span import is_own_code, is_user_code

__all__ = ["CaptureFailure", "GuardFact", "span_of_frame", "user_spans"]


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
class CaptureFailure:
    """Why no program was captured.

    Args:
        error_types: Class names of the error and of the errors behind it, outermost first.
        messages: Their texts, in the same order.
        spans: Frames of user code in the traceback of the innermost error that has any, outermost first.
        guards: Conditions on sizes met before the failure.
        error: The error itself, for a debugger and for `--debug`; not part of any comparison.
    """

    error_types: tuple[str, ...]
    messages: tuple[str, ...]
    spans: tuple[Span, ...]
    guards: tuple[GuardFact, ...] = ()
    error: BaseException | None = field(default=None, repr=False, compare=False)

    @property
    def culprit(self) -> Span | None:
        """The innermost frame of user code, with columns where the source is at hand, or None."""
        return with_columns(self.spans[-1]) if self.spans else None

    @classmethod
    def of(
        cls, error: BaseException, *, guards: tuple[GuardFact, ...] = (), spans: tuple[Span, ...] = ()
    ) -> CaptureFailure:
        """What an error says.

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


def _chain(error: BaseException | None) -> Iterator[BaseException]:
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        yield error
        error = error.__cause__ or (None if error.__suppress_context__ else error.__context__)


_FRAME_IN_TEXT = re.compile(r'File "(?P<path>[^"\n]+)", line (?P<line>\d+), in (?P<function>\S+?),?(?=\s)')


def _spans_in_text(errors: Iterable[BaseException]) -> tuple[Span, ...]:
    """User frames that torch wrote into a message: strict export raises far away from the user's code."""
    for error in errors:
        found = [m for trace in str(error).split("\n\n") for m in _frames_of_the_model(trace)]
        if found:
            return tuple(
                Span(m["path"], int(m["line"]), function=m["function"], origin="stack_trace") for m in found
            )
    frames = [getattr(error, "innermost_user_frame_summary", None) for error in errors]
    frames += [frame for error in errors for frame in getattr(error, "real_stack", None) or ()]
    return tuple(
        span_of_frame(frame) for frame in frames if frame is not None and is_user_code(frame.filename)
    )


def _frames_of_the_model(trace: str) -> Iterator[re.Match[str]]:
    """The user frames of one stack trace; those outside of our own frames belong to who called fakexport."""
    frames = list(_FRAME_IN_TEXT.finditer(f"{trace}\n"))
    own = max((index for index, m in enumerate(frames) if is_own_code(m["path"])), default=-1)
    return (frame for frame in frames[own + 1 :] if is_user_code(frame["path"]))


def user_spans(error: BaseException) -> tuple[Span, ...]:
    """The frames of an error's own traceback that belong to user code, outermost first, with columns.

    Frames of torch, of fakexport, of the standard library and of generated code are left out; model
    libraries such as transformers count as user code.
    """
    frames = traceback.extract_tb(error.__traceback__)
    return tuple(span_of_frame(frame) for frame in frames if frame.lineno and is_user_code(frame.filename))


def span_of_frame(frame: traceback.FrameSummary) -> Span:
    """The place of a frame, with columns where Python knows them."""
    line = frame.lineno or 1
    column, end_column = _columns(frame)
    return Span(
        path=frame.filename,
        line=line,
        column=column,
        end_column=end_column,
        function=frame.name,
        origin="traceback",
    )


def _columns(frame: traceback.FrameSummary) -> tuple[int | None, int | None]:
    """Columns from 1 in characters; Python reports bytes of UTF-8 from 0."""
    if frame.colno is None or frame.end_colno is None or frame.lineno is None:
        return None, None
    text = linecache.getline(frame.filename, frame.lineno).encode()
    start = len(text[: frame.colno].decode(errors="replace")) + 1
    if frame.end_lineno != frame.lineno:
        return start, None
    end = len(text[: frame.end_colno].decode(errors="replace")) + 1
    return start, end if end > start else None
