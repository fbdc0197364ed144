"""Explain a refused dynamic dimension: FE302, FE303, FE304."""

from __future__ import annotations

import re
from collections.abc import Sequence

from fakexport.capture import CaptureFailure, GuardFact
from fakexport.diagnose.labels import labels_at, torch_says
from fakexport.diagnose.size_repairs import division_repair, function_repair
from fakexport.diagnostics import Diagnostic, Fix
from fakexport.rules import rule

_MARKS = (
    re.compile(r"specialized it to be a constant \((?P<size>\d+)\)"),
    re.compile(r"Not all values of .* satisfy the generated guard (?P<guard>.+)"),
    re.compile(r"Constraints violated \("),
)
_ZERO_OR_ONE = re.compile(
    r"0/1 specialized due to hint of (?P<size>[01]) for dimension "
    r"inputs\['(?P<name>\w+)'\]\.shape\[(?P<dim>\d+)\]"
)
_EQUAL = re.compile(r"The values of (?P<dims>.+) must always be equal")
_DIMENSION = re.compile(r"L\['(?P<name>\w+)'\]\.size\(\)\[(?P<dim>\d+)\]")


def dynamic_dims_specialised(failure: CaptureFailure) -> tuple[Diagnostic, ...]:
    """Report FE302, for each dimension that works for one size only, or for a part of its declared range."""
    text = next((m for m in failure.messages if any(mark.search(m) for mark in _MARKS)), None)
    if text is None:
        return ()
    points = [point for point in text.split("\n  - ")[1:] if _DIMENSION.search(point)]
    return tuple(_specialised(failure, point, is_only=len(points) < 2) for point in points or [text])


def zero_or_one_examples(failure: CaptureFailure) -> tuple[Diagnostic, ...]:
    """Report FE303, for each example size that stands for itself only."""
    found = [match for text in failure.messages[:1] for match in _ZERO_OR_ONE.finditer(text)]
    return tuple(
        rule("FE303").diagnostic(
            notes=(f"the example of {m['name']} has size {m['size']} in dimension {m['dim']}",),
            fix=Fix(f"pass an example in which {m['name']}.{m['dim']} is 2 or more"),
        )
        for m in found
    )


def dims_must_be_equal(failure: CaptureFailure) -> tuple[Diagnostic, ...]:
    """Report FE304, for each pair of dimensions that were declared apart."""
    found = [match for text in failure.messages[:1] for match in _EQUAL.finditer(text)]
    return tuple(_unequal(failure, match["dims"]) for match in found)


def _unequal(failure: CaptureFailure, text: str) -> Diagnostic:
    dims = sorted({f"{m['name']}.{m['dim']}" for m in _DIMENSION.finditer(text)})
    guard = _responsible(failure, dims)
    names = " and ".join(dims)
    return rule("FE304").diagnostic(
        labels=labels_at(guard.span if guard else None, f"needs {names} to be equal"),
        notes=torch_says(failure),
        fix=Fix(f"declare the same dimension for {names}"),
    )


def _specialised(failure: CaptureFailure, text: str, *, is_only: bool) -> Diagnostic:
    sized = _MARKS[0].search(text)
    dims = sorted({f"{m['name']}.{m['dim']}" for m in _DIMENSION.finditer(text)})
    name = " and ".join(dims) or "the dimension"
    guard = _responsible(failure, dims)
    needs = f"needs {name} to be {sized['size']}" if sized else f"restricts {name}"
    if guard is not None:
        needs += f" ({guard.expression})"
    span = guard.span if guard else failure.culprit
    fix = f"declare {name} static, or take the size from the tensor in this line" if sized else None
    return rule("FE302").diagnostic(
        labels=labels_at(span, needs),
        notes=torch_says(failure) if is_only else (text.partition(" If you're using")[0].strip(),),
        fix=division_repair(span)
        or function_repair(span)
        or Fix(fix or f"declare a smaller range for {name}"),
    )


def _responsible(failure: CaptureFailure, dims: Sequence[str]) -> GuardFact | None:
    """Return the guard that fixes a size of one of the dimensions, or else the last one that has a place."""
    placed = [guard for guard in failure.guards if guard.span is not None]
    own = [guard for guard in placed if set(guard.dims) & set(dims)] or placed
    fixing = [guard for guard in own if guard.expression.startswith("Eq(")]
    return next(iter(fixing), None) or (own[-1] if own else None)
