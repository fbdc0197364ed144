"""What the trace after a failed capture found: problems, and what was assumed to get past them."""

from __future__ import annotations

from dataclasses import dataclass

from fakexport.diagnostics import Span

from .failure import CaptureFailure


@dataclass(frozen=True)
class Assumption:
    """What was taken for granted to go on.

    Args:
        text: A clause: "`x.sum() > 0` is False".
        span: The user's line.
        is_branch: A branch was taken, as some input would take it. All else (a number, data) was made up.
        answer: A truth value or a number to assume at the line for the same trace; None if neither suffices.
    """

    text: str
    span: Span
    is_branch: bool = False
    answer: bool | int | None = None


@dataclass(frozen=True)
class Problem:
    """One place where a capture fails.

    Args:
        failure: What torch says there.
        assumptions: Those that had been made before it.
        count: How often the trace met it.
        is_last: The trace could not go on.
    """

    failure: CaptureFailure
    assumptions: tuple[Assumption, ...]
    count: int = 1
    is_last: bool = False


@dataclass(frozen=True)
class Exploration:
    """What a capture runs into.

    Args:
        problems: In the order in which the trace met them first.
        assumptions: All that were made, in order.
        is_complete: The trace came to its end, so that no later problem is hidden.
        limit: What ended the trace before that: "2,000 assumptions"; None where nothing did.
        is_eager_fault: The error that ended the capture is raised without a trace too.
        batch_of_one: All inputs, as `NAME=DTYPE[DIMS]`, with which it is not, where one sample is the cure.
        inputs: All inputs in that form, where `forward` takes one of any name in addition to them.
    """

    problems: tuple[Problem, ...] = ()
    assumptions: tuple[Assumption, ...] = ()
    is_complete: bool = False
    limit: str | None = None
    is_eager_fault: bool = False
    batch_of_one: tuple[str, ...] = ()
    inputs: tuple[str, ...] = ()
