"""The plain-data form holds everything, in a fixed order."""

from __future__ import annotations

import dataclasses
import json

from fakexport.diagnostics import Diagnostic, Fix, Label, Span
from fakexport.report.as_json import plain


def full() -> Diagnostic:
    return Diagnostic(
        "FE201",
        "error",
        "headline",
        labels=(Label(Span("m.py", 7, 5, 9, "forward", "traceback"), "here"),),
        notes=("one", "two"),
        fix=Fix("change it", is_safe=True, command="fakexport explain FE201"),
        node="gt",
        module_path="head",
        count=2,
        fault="torch",
        targets=("cpu",),
    )


def test_golden() -> None:
    assert json.dumps(plain(full())) == (
        '{"code": "FE201", "severity": "error", "message": "headline", '
        '"labels": [{"span": {"path": "m.py", "line": 7, "column": 5, "end_column": 9, '
        '"function": "forward", "origin": "traceback"}, "message": "here", "is_primary": true}], '
        '"notes": ["one", "two"], '
        '"fix": {"message": "change it", "is_safe": true, "command": "fakexport explain FE201", '
        '"changes": [], "is_verified": false}, '
        '"node": "gt", "module_path": "head", "count": 2, "fault": "torch", "targets": ["cpu"]}'
    )


def test_empty_fields_are_written_too() -> None:
    data = plain(Diagnostic("FE201", "error", "headline"))

    assert list(data) == [field.name for field in dataclasses.fields(Diagnostic)]
    assert data["fix"] is None
    assert data["labels"] == []


def test_what_json_gives_back_is_what_was_given() -> None:
    data = plain(full())

    assert json.loads(json.dumps(data)) == data
