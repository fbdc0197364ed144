"""Diagnose dynamic dimensions that torch.export rejected: FE302, FE303, FE304."""

from __future__ import annotations

import re
from collections.abc import Sequence

from fakexport._torch.tracing.guard_locations import Guard
from fakexport.exporting.capture import CaptureFailure, guard_span
from fakexport.report.diagnose.labels import labels_at, torch_says
from fakexport.report.diagnose.size_repairs import division_repair, function_repair
from fakexport.rules import rule
from fakexport.rules.diagnostics import Diagnostic, Fix

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
    """Report FE302 for each dimension that supports only one size, or only part of its declared range."""
    text = next((m for m in failure.messages if any(mark.search(m) for mark in _MARKS)), None)
    if text is None:
        return ()
    points = [point for point in text.split("\n  - ")[1:] if _DIMENSION.search(point)]
    return tuple(_specialised(failure, point, is_only=len(points) < 2) for point in points or [text])


def zero_or_one_examples(failure: CaptureFailure) -> tuple[Diagnostic, ...]:
    """Report FE303 for each example size of 0 or 1, which torch specializes on."""
    found = [match for text in failure.messages[:1] for match in _ZERO_OR_ONE.finditer(text)]
    return tuple(
        rule("FE303").diagnostic(
            notes=(f"the example input {m['name']} has size {m['size']} in dimension {m['dim']}",),
            fix=Fix(f"pass an example input in which {m['name']}.{m['dim']} is 2 or more"),
        )
        for m in found
    )


def dims_must_be_equal(failure: CaptureFailure) -> tuple[Diagnostic, ...]:
    """Report FE304 for each pair of independently declared dimensions that must be equal."""
    found = [match for text in failure.messages[:1] for match in _EQUAL.finditer(text)]
    return tuple(_unequal(failure, match["dims"]) for match in found)


def _unequal(failure: CaptureFailure, text: str) -> Diagnostic:
    dims = sorted({f"{m['name']}.{m['dim']}" for m in _DIMENSION.finditer(text)})
    guard = _responsible(failure, dims)
    names = " and ".join(dims)
    return rule("FE304").diagnostic(
        labels=labels_at(guard_span(guard) if guard else None, f"requires {names} to be equal"),
        notes=torch_says(failure),
        fix=Fix(f"declare the same dimension for {names}"),
    )


def _specialised(failure: CaptureFailure, text: str, *, is_only: bool) -> Diagnostic:
    sized = _MARKS[0].search(text)
    dims = sorted({f"{m['name']}.{m['dim']}" for m in _DIMENSION.finditer(text)})
    name = " and ".join(dims) or "the dimension"
    guard = _responsible(failure, dims)
    needs = f"requires {name} to be {sized['size']}" if sized else f"restricts {name}"
    if guard is not None:
        needs += f" ({guard.expression})"
    span = guard_span(guard) if guard else failure.culprit
    fix = f"declare {name} static, or read the size from the tensor in this line" if sized else None
    return rule("FE302").diagnostic(
        labels=labels_at(span, needs),
        notes=torch_says(failure) if is_only else (text.partition(" If you're using")[0].strip(),),
        fix=division_repair(span)
        or function_repair(span)
        or Fix(fix or f"declare a smaller range for {name}"),
    )


def _responsible(failure: CaptureFailure, dims: Sequence[str]) -> Guard | None:
    """Return the guard that caused the error: the first equation on one of `dims`, else the last guard."""
    placed = [guard for guard in failure.guards if guard_span(guard) is not None]
    own = [guard for guard in placed if set(guard.dims) & set(dims)] or placed
    fixing = [guard for guard in own if guard.expression.startswith("Eq(")]
    return next(iter(fixing), None) or (own[-1] if own else None)
