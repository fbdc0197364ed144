"""Reports as text, as in `goldens/`. `FAKEXPORT_WRITE_GOLDENS=1` writes the files again."""

import json
import os
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import nn

from fakexport.archive import verify_weights
from fakexport.report import (
    ProjectReport,
    render_bench,
    render_device_literals,
    render_github,
    render_markdown,
    render_modules,
    render_plan,
    render_report,
    render_weights,
)
from fakexport.report.as_json import plain
from fakexport.rules.diagnostics import Diagnostic, Fix, Label, Span, render_text
from fakexport.rules.diagnostics import render_github as annotation
from tests.unit.report.sample_bench import sample_bench
from tests.unit.report.sample_plan import sample_plan
from tests.unit.report.sample_reports import full_report, report, verdict
from tests.unit.report.test_render_device_literals import DIAGNOSTIC, FIRST, MOVE, SECOND, broken, listing
from tests.unit.report.test_render_modules import ACTIVATION, ROOT

FOLDER = Path(__file__).with_name("goldens")
SOURCES = {
    ("blocks.py", 3): "    table = torch.ones(3)",
    ("model.py", 9): "        x = self.embed(x)",
    ("model.py", 12): "    return h * w",
}
FULL = Diagnostic(
    "FE502",
    "error",
    "device mismatch between tensors of an operator",
    labels=(
        Label(Span("blocks.py", 3, 5, 10), "made on cpu", is_primary=False),
        Label(Span("model.py", 12, 16, 17), "left: cuda:0", is_primary=False),
        Label(Span("model.py", 12, 12, 13, "forward", "traceback"), "cuda:0 and cpu meet"),
        Label(Span("model.py", 9, 9), "x came in here", is_primary=False),
    ),
    notes=("Expected all tensors\nto be on the same device",),
    fix=Fix("move one of them", is_safe=True, command="fakexport retarget model.pt2 --to cpu=cuda:0"),
    node="mul",
    module_path="layers.0",
    count=126,
    fault="operator library",
    targets=("cpu+H100", "2xT4"),
)
NO_COLUMN = Diagnostic(
    "FE201", "error", "a branch", labels=(Label(Span("m.py", 1234, function="forward"), "u0 is\nunknown"),)
)
NO_SOURCE = replace(
    FULL,
    severity="warning",
    labels=(
        Label(Span("gone.py", 3, 5, 8), "the branch"),
        Label(Span("lost.py", 4, 1, function="make"), "made here", is_primary=False),
    ),
    targets=("cpu",),
)


def weights():
    layers = nn.Sequential(*[nn.Linear(4, 2) for _ in range(3)])
    given = {f"module.{name}": tensor for name, tensor in layers.state_dict().items() if name != "0.bias"}
    return verify_weights(layers, given)


def one_dtype():
    child = replace(ACTIVATION, dtypes=("int8",))
    sizes = {"bytes_per_device": {"cpu": 4}, "total_parameters": 1, "total_bytes": 4}
    return replace(ROOT, children=(child,), dtypes=("int8",), **sizes)


def project():
    return ProjectReport((report(), full_report()), {"absent.py:f": "no such file"})


GOLDENS = {
    "check": lambda: render_report(full_report()),
    "check_of_one_target": lambda: render_report(report(verdict("cpu"))),
    "github": lambda: render_github(full_report()),
    "markdown": lambda: render_markdown(project()),
    "bench": lambda: render_bench(sample_bench(), width=80),
    "plan": lambda: render_plan(sample_plan(), width=110),
    "modules": lambda: render_modules(ROOT),
    "modules_of_one_dtype": lambda: render_modules(one_dtype()),
    "weights": lambda: render_weights(weights()),
    "weights_that_fit": lambda: render_weights(
        verify_weights(nn.Linear(2, 1), {"weight": torch.zeros(1, 2), "bias": torch.zeros(1)})
    ),
    "device_literals": lambda: render_device_literals(
        listing(FIRST, SECOND, MOVE, breakages=broken(FIRST, SECOND), diagnostics=(DIAGNOSTIC,))
    ),
    "diagnostic": lambda: render_text(FULL, read_source=lambda *place: SOURCES.get(place)),
    "diagnostic_without_column": lambda: render_text(NO_COLUMN, read_source=lambda *_: "    if x.sum() > 0:"),
    "diagnostic_without_source": lambda: render_text(NO_SOURCE),
    "diagnostic_as_json": lambda: json.dumps(plain(FULL), indent=1),
    "diagnostic_as_github": lambda: annotation(FULL),
}


@pytest.mark.parametrize("name", GOLDENS)
def test_text_is_the_golden(name):
    text = GOLDENS[name]() + "\n"
    path = FOLDER / f"{name}.txt"
    if os.environ.get("FAKEXPORT_WRITE_GOLDENS"):
        path.write_text(text, encoding="utf-8")

    assert text == path.read_text(encoding="utf-8")


def test_every_golden_has_a_test():
    assert {path.stem for path in FOLDER.iterdir()} == GOLDENS.keys()
