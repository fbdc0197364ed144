"""A diagnostic that breaks its own rules cannot be made."""

from __future__ import annotations

import dataclasses

import pytest

from fakexport.diagnostics import Diagnostic, Fix, Label, Span


def test_a_message_of_80_characters_is_accepted_and_one_more_is_not() -> None:
    longest = "m" * 80

    assert Diagnostic("FE201", "error", longest).message == longest
    with pytest.raises(ValueError, match="81 characters"):
        Diagnostic("FE201", "error", longest + "m")


@pytest.mark.parametrize(
    ("change", "fragment"),
    [
        ({"code": "E201"}, "FE followed by three digits"),
        ({"code": "FE2011"}, "FE followed by three digits"),
        ({"severity": "fatal"}, "error, warning, note"),
        ({"fault": "nobody"}, "operator library"),
        ({"message": ""}, "one line"),
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


def test_the_primary_label_is_found_wherever_it_stands() -> None:
    helper, culprit = Label(Span("a.py", 1), "made here", False), Label(Span("b.py", 2), "used here")

    assert Diagnostic("FE201", "error", "headline", labels=(helper, culprit)).primary is culprit
    assert Diagnostic("FE201", "error", "headline").primary is None


def test_diagnostics_are_frozen_and_hashable() -> None:
    diagnostic = Diagnostic("FE201", "error", "headline", fix=Fix("change it"))

    assert hash(diagnostic) == hash(Diagnostic("FE201", "error", "headline", fix=Fix("change it")))
    with pytest.raises(dataclasses.FrozenInstanceError):
        diagnostic.count = 2  # type: ignore[misc]
