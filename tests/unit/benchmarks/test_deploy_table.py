"""docs/deploy_table.md and the script that writes it."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks.deploy_table import CASES, PAGE, merged, page
from fakexport.deploy.benchmark.modes import MODES
from fakexport.report.as_json import to_dict
from tests.unit.report.sample_bench import sample_bench


def test_the_page_has_every_model_of_the_script_in_every_mode():
    text = PAGE.read_text(encoding="utf-8")

    names = re.findall(r"^## (.*)", text, re.MULTILINE)[1:]
    assert names == [case.name for case in CASES.values()]
    assert re.findall(r"^\| `([\w+-]+)` \|", text, re.MULTILINE) == [*MODES] * (1 + len(names))


def measured(report=None):
    """A report as the script keeps it."""
    found = to_dict(report or sample_bench())
    found["measured"] |= {"warmup": 5, "repeat": 30, "loads": [0.5, 1.25]}
    return found


def test_a_page_does_not_say_where_packages_are_installed():
    report = sample_bench()
    failure = replace(
        report.rows[1].failures[0], reason="no such file: /home/me/lib/site-packages/torch/x.py:3"
    )
    rows = (report.rows[0], replace(report.rows[1], failures=(failure,)))

    text = page({"mlp": measured(replace(report, rows=rows))})

    assert "`no such file: torch/x.py:3`" in text


def test_modes_that_were_measured_later_are_added():
    first, *others = sample_bench().rows
    known, new = (measured(replace(sample_bench(), rows=rows)) for rows in ((first,), tuple(others)))

    whole = merged(known, new, Path("mlp.json"))

    assert whole["modes"] == measured()["modes"]
    assert whole["measured"]["modes"] == measured()["measured"]["modes"]
    assert whole["measured"]["loads"] == [0.5, 1.25, 0.5, 1.25]


@pytest.mark.parametrize(
    ("other", "name"),
    [
        ({"processor": "an abacus"}, "processor"),
        ({"versions": {"torch": "1.0"}}, "torch"),
        ({"inputs": ("x=float32[1]",)}, "inputs"),
    ],
)
def test_figures_that_were_measured_with_something_else_are_refused(other, name):
    report = sample_bench()

    with pytest.raises(SystemExit, match=f"^error: mlp.json .* of {name} .*: remove it$"):
        merged(measured(report), measured(replace(report, **other)), Path("mlp.json"))
