"""Declared dynamic dimensions that the model restricts: FE302."""

from __future__ import annotations

import re

from fakexport.capture import CaptureFailure, GuardFact
from fakexport.diagnose.labels import labels_at, torch_says
from fakexport.diagnostics import Diagnostic, Fix
from fakexport.rules import rule

__all__ = ["dynamic_dim_specialised"]

_MARKS = (
    re.compile(r"specialized it to be a constant \((?P<size>\d+)\)"),
    re.compile(r"Not all values of .* satisfy the generated guard (?P<guard>.+)"),
    re.compile(r"Constraints violated \("),
)
_DIMENSION = re.compile(r"L\['(?P<name>\w+)'\]\.size\(\)\[(?P<dim>\d+)\]")


def dynamic_dim_specialised(failure: CaptureFailure) -> Diagnostic | None:
    """FE302: the model works for one size of a dimension only, or for a part of its declared range."""
    text = next((m for m in failure.messages if any(mark.search(m) for mark in _MARKS)), None)
    if text is None:
        return None
    sized = _MARKS[0].search(text)
    dims = sorted({f"{m['name']}.{m['dim']}" for m in _DIMENSION.finditer(text)})
    name = " and ".join(dims) or "the dimension"
    guard = _responsible(failure)
    needs = f"needs {name} to be {sized['size']}" if sized else f"restricts {name}"
    if guard is not None:
        needs += f" ({guard.expression})"
    fix = f"declare {name} static, or take the size from the tensor in this line" if sized else None
    return rule("FE302").diagnostic(
        labels=labels_at(guard.span if guard else failure.culprit, needs),
        notes=torch_says(failure),
        fix=Fix(fix or f"declare a smaller range for {name}"),
    )


def _responsible(failure: CaptureFailure) -> GuardFact | None:
    """The guard that fixes a size, or else the last one that has a place."""
    placed = [guard for guard in failure.guards if guard.span is not None]
    fixing = [guard for guard in placed if guard.expression.startswith("Eq(")]
    return next(iter(fixing), None) or (placed[-1] if placed else None)
