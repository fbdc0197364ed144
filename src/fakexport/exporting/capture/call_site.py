"""Find frames of user code on the stack, and check whether user code itself makes a data-dependent query."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from types import CodeType, FrameType

from fakexport._torch.tracing.data_dependent_questions import Question
from fakexport.exporting.program import is_user_code
from fakexport.rules.diagnostics import Span, with_columns

from .failure import span_at


def running_user_frames(until: CodeType) -> list[tuple[FrameType, Span]]:
    """Return the frames of user code on this thread's stack with their positions, outermost first.

    Args:
        until: Code object of the function that calls the model. Frames of its callers do not belong to the
            model.
    """
    found = [(frame, _span(frame)) for frame in _inside(until) if is_user_code(frame.f_code.co_filename)]
    if found:
        innermost, span = found[0]
        found[0] = innermost, with_columns(span)
    return found[::-1]


def user_frame(frame: FrameType | None) -> FrameType | None:
    """Return the innermost frame of user code, starting from `frame` and going through its callers."""
    while frame is not None and not is_user_code(frame.f_code.co_filename):
        frame = frame.f_back
    return frame


def is_asked_by_user(question: Question) -> bool:
    """Return whether user code itself makes the query, rather than a torch operator that the code calls."""
    return question.asking is not None and is_user_code(question.asking)


def _inside(until: CodeType) -> Iterator[FrameType]:
    frame: FrameType | None = sys._getframe(2)
    while frame is not None and frame.f_code is not until:
        yield frame
        frame = frame.f_back


def _span(frame: FrameType) -> Span:
    return span_at(frame.f_code, frame.f_lasti, frame.f_lineno)
