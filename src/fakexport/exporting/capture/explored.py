"""Findings of the extra trace after a failed capture: problems, and assumptions that let it continue."""

from __future__ import annotations

from dataclasses import dataclass

from fakexport.rules.diagnostics import Span

from .failure import CaptureFailure


@dataclass(frozen=True)
class Assumption:
    """An assumption made to continue a trace.

    Args:
        text: A clause: "`x.sum() > 0` is False".
        span: The user's line.
        is_branch: Whether the assumption selects a branch that some input would take. If False, the
            assumption makes up a number or data.
        answer: The boolean or number that a user can assume at this line to get the same trace. None if no
            assumption leads to the same trace.
    """

    text: str
    span: Span
    is_branch: bool = False
    answer: bool | int | None = None


@dataclass(frozen=True)
class Problem:
    """A line at which a capture fails.

    Args:
        failure: The failure that torch reported.
        assumptions: The assumptions that were made before this problem.
        count: How often the problem occurred in the trace.
        is_last: Whether the trace could not continue after this problem.
    """

    failure: CaptureFailure
    assumptions: tuple[Assumption, ...]
    count: int = 1
    is_last: bool = False


@dataclass(frozen=True)
class Exploration:
    """Findings of an exploration.

    Args:
        problems: In the order in which the trace found them.
        assumptions: All assumptions, in order.
        is_complete: Whether the trace ran to the end, so that no problem can follow.
        limit: The limit that ended the trace early, such as "2,000 assumptions", or None.
        is_eager_fault: Whether the error that ended the capture is also raised in eager mode.
        batch_of_one: All inputs with batch size 1, as `NAME=DTYPE[DIMS]`, if this batch size avoids the
            error; otherwise empty.
        inputs: All inputs as `NAME=DTYPE[DIMS]`, if `forward` accepts additional inputs of any name.
    """

    problems: tuple[Problem, ...] = ()
    assumptions: tuple[Assumption, ...] = ()
    is_complete: bool = False
    limit: str | None = None
    is_eager_fault: bool = False
    batch_of_one: tuple[str, ...] = ()
    inputs: tuple[str, ...] = ()
