"""A fix is tried before it is printed: what works is verified, and what does not is no fix."""

from dataclasses import replace

import pytest
import torch
from torch import nn

from fakexport.checking import Wanted, report_on
from fakexport.checking.targets import parse_targets
from fakexport.checking.tried_fixes import with_tried_fixes
from fakexport.exporting.capture import Request
from fakexport.report import render_report
from fakexport.rules.diagnostics import Change
from tests.unit.report.diagnose.repair_corpus import CORPUS, Failing


def tried(path, **options):
    call = Request(source=f"{path}:factory", **options)
    return report_on(call, wanted=Wanted(tried_fixes=True))


def written(path, body, args="torch.ones(4)", **fields):
    path.write_text(Failing("", "", body, body, args, **fields).source(repaired=False))
    return path


@pytest.mark.parametrize(
    "name",
    [
        "check that raises",
        "conditional expression",
        "mask that may be None",
        "mask that is dropped",
        "rows that a mask may set",
        "empty selection",
        "branch that no input takes",
        "list of as many tensors as data say",
        "index of 0-d tensors",
        "module cast in forward",
        pytest.param("assertion on values", marks=pytest.mark.slow),
        pytest.param("loop that ends early", marks=pytest.mark.slow),
        pytest.param("size in a part of an expression", marks=pytest.mark.slow),
        pytest.param("step without rows", marks=pytest.mark.slow),
        pytest.param("Python's max", marks=pytest.mark.slow),
    ],
)
def test_a_fix_that_works_is_verified_and_changes_no_file(name, tmp_path, capfd):
    path = tmp_path / "model.py"
    path.write_text(text := CORPUS[name].source(repaired=False))

    report = tried(path)

    assert [each.fix.is_verified for each in report.diagnostics] == [True]
    assert "= fix (verified): " in render_report(report)
    assert path.read_text() == text
    assert capfd.readouterr() == ("", "")


def test_fixes_of_several_problems_are_verified_together(tmp_path):
    body = "if not torch.isfinite(x).all():\n    x = -x\nreturn x + (2.0 if x.mean() > 0 else 0.5)"

    report = tried(written(tmp_path / "model.py", body), target=["cpu", "H100"])

    assert [(each.code, each.fix.is_verified) for each in report.diagnostics] == [("FE201", True)] * 2


def test_a_fix_that_leaves_the_problem_is_not_printed(tmp_path):
    body = "if any(x > 0):\n    return x.masked_select(x > 0).sum()\nreturn x.sum()"

    (found,) = tried(written(tmp_path / "model.py", body)).diagnostics

    assert not found.fix.is_verified
    assert found.fix.message == (
        "no fix is known for this line; this was tried and does not fix it: "
        "use `(x > 0).any()` instead of Python's `any`"
    )


def test_a_fix_that_uncovers_another_problem_is_not_verified(tmp_path):
    loop = "for _ in range(3):\n    if x.sum() > 0:\n        break\n    x = x * 2\n"
    body = f"{loop}else:\n    raise OSError\nreturn x"

    (found,) = tried(written(tmp_path / "model.py", body)).diagnostics

    assert found.fix.message.startswith("skip the early end of the loop while exporting")
    assert not found.fix.is_verified


@pytest.mark.parametrize(
    ("text", "is_verified"), [("None", True), ("torch.manual_seed(0)", False), ("print(1)", False)]
)
def test_a_fix_of_no_error_is_verified_if_its_finding_is_gone_and_nothing_is_new(text, is_verified, tmp_path):
    path = written(tmp_path / "model.py", "print(x.shape)\nreturn x + 1")
    call = Request(source=f"{path}:factory")
    report = report_on(call, wanted=Wanted())
    (found,) = report.diagnostics
    assert found.fix.changes[0].edits[0].text == "None"
    edits = (replace(found.fix.changes[0].edits[0], text=text),)
    warned = replace(found, severity="warning", fix=replace(found.fix, changes=(Change(edits=edits),)))

    report = with_tried_fixes(
        replace(report, diagnostics=(warned,)), call, parse_targets("cpu", None, None), limit_s=30
    )

    assert [each.fix.is_verified for each in report.diagnostics] == [is_verified]


def test_a_dtype_is_tried(tmp_path):
    body = "return torch.fft.fft(self.linear(x)).real"
    path = written(tmp_path / "model.py", body, init="self.linear = nn.Linear(4, 4)")

    (found,) = tried(path, dtype="bfloat16").diagnostics

    assert found.fix.message.startswith("check the model in float32, `--dtype float32`")
    assert found.fix.is_verified


def test_a_trial_ends_at_its_limit_and_the_fix_stays(tmp_path):
    path = written(tmp_path / "model.py", "return x if x.mean() > 0 else -x")
    text = path.read_text()
    slow = "import pathlib, time\nmark = pathlib.Path(__file__).with_suffix('.mark')\n"
    path.write_text(f"{slow}time.sleep(60 if mark.exists() else 0)\nmark.touch()\n{text}")
    call = Request(source=f"{path}:factory")
    report = report_on(call, wanted=Wanted())

    found = with_tried_fixes(report, call, parse_targets("cpu", None, None), limit_s=5)

    assert found == report


def test_the_code_of_a_module_that_is_imported_is_not_changed():
    class Asserts(nn.Module):
        def forward(self, x):
            return x if x.mean() > 0 else -x

    call = Request(source=Asserts, args=(torch.ones(4),))
    (found,) = report_on(call, wanted=Wanted(tried_fixes=True)).diagnostics

    assert not found.fix.is_verified
    assert found.fix.message.startswith("compute both sides")


@pytest.mark.parametrize(
    ("body", "fix"),
    [
        (
            "places = torch.arange(x.shape[1])\nz = self.table(places)\nreturn z.sum() + x",
            "`device=x.device` at line 15: `torch.arange(x.shape[1], device=x.device)`",
        ),
        (
            "if x.shape[0] > 1:\n    y = x + torch.arange(x.shape[1], device='cpu')\nreturn y",
            "`device=x.device`: `torch.arange(x.shape[1], device=x.device)`",
        ),
        ("places = torch.arange(6).flip(0)\nreturn x + places", "`places.to(x.device)`"),
    ],
)
def test_a_tensor_is_created_on_the_device_of_one_that_exists_there(body, fix, tmp_path):
    path = written(tmp_path / "model.py", body, "torch.ones(2, 6)", init="self.table = nn.Embedding(6, 6)")

    (found,) = tried(path, target="H100").diagnostics

    assert (found.code, fix in found.fix.message, found.fix.is_verified) == ("FE502", True, True)
