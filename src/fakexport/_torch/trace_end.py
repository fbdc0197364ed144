"""Ending an export where its trace ends. Seen on torch 2.11 to 2.13.

After the trace and the check of the declared dimensions, export works on the graph for as long again. To find
out what the trace runs into, none of that is needed.

Source: `torch/export/_trace.py:_non_strict_export`.
"""

from __future__ import annotations

from typing import Any

from torch.export import _trace

from .patching import Patches, in_force


class TraceFinished(BaseException):
    """The trace is complete. Not an `Exception`: nothing between here and the caller may keep it."""


def ended_after_trace() -> Patches:
    """Return a context in which a non-strict export raises `TraceFinished` after checking dimensions."""
    stock = in_force(_trace, "produce_guards_and_solve_constraints")

    def produce_guards_and_solve_constraints(*args: Any, **kwargs: Any) -> None:
        stock(*args, **kwargs)
        raise TraceFinished

    return Patches({(_trace, "produce_guards_and_solve_constraints"): produce_guards_and_solve_constraints})
