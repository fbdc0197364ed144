"""A diagnostic that breaks its own rules cannot be made."""

from __future__ import annotations

import pytest

from fakexport.rules.diagnostics import Diagnostic, Label, Span


@pytest.mark.parametrize(
    ("change", "fragment"),
    [
        ({"code": "E201"}, "followed by three digits"),
        ({"code": "FE2011"}, "followed by three digits"),
        ({"severity": "fatal"}, "error, warning, note"),
        ({"fault": "nobody"}, "operator library"),
        ({"message": ""}, "one line"),
        ({"message": "m" * 81}, "81 characters"),
        ({"message": "two\nlines"}, "one line"),
        ({"count": 0}, "starts at 1"),
    ],
)
def test_a_malformed_field_is_named(change: dict[str, object], fragment: str) -> None:
    fields = {"code": "FE201", "severity": "error", "message": "headline"} | change

    with pytest.raises(ValueError, match=fragment):
        Diagnostic(**fields)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("fields", "fragment"),
    [
        ({"line": 0}, "line counts from 1"),
        ({"line": 1, "column": 0}, "column counts from 1"),
        ({"line": 1, "column": 4, "end_column": 4}, "not after"),
        ({"line": 1, "end_column": 4}, "not after"),
        ({"line": 1, "origin": "hearsay"}, "traceback, stack_trace, guard, source"),
    ],
)
def test_a_span_that_is_no_place_is_refused(fields: dict[str, object], fragment: str) -> None:
    with pytest.raises(ValueError, match=fragment):
        Span("model.py", **fields)  # type: ignore[arg-type]


@pytest.mark.parametrize("primaries", [(), (True, True)])
def test_labels_need_exactly_one_primary(primaries: tuple[bool, ...]) -> None:
    labels = tuple(Label(Span("model.py", line), "", is_primary=is_) for line, is_ in enumerate(primaries, 1))

    with pytest.raises(ValueError, match="exactly one primary"):
        Diagnostic("FE201", "error", "headline", labels=labels or (Label(Span("m.py", 1), "", False),))
