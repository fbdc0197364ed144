"""The printed fix, followed literally, leads to a model that exports and computes the same.

The share for which it does is asserted here.
"""

from __future__ import annotations

import re
import runpy
from functools import cache
from pathlib import Path

import pytest
import torch

import fakexport as fe
from fakexport.rules.diagnostics import source_text
from tests.unit.report.diagnose.repair_corpus import CORPUS, Failing
from tests.unit.report.diagnose.test_several_problems import checked

LEAST_SHARE = 0.9
# What is printed for these does not lead to a model that exports; each with the reason.
KNOWN_NOT_TO_WORK = {
    "rows that are kept one by one": "how many rows there are depends on data: only masking keeps the shape",
    "key of a dictionary": "which head runs depends on data: all have to run, and one be picked",
}
PAGE = Path(__file__).parents[4] / "docs" / "benchmarks.md"


@cache
def folder() -> Path:
    import tempfile

    return Path(tempfile.mkdtemp(prefix="fakexport-repairs-"))


def written(name, *, repaired):
    path = folder() / f"{'after' if repaired else 'before'}_{list(CORPUS).index(name)}.py"
    path.write_text(CORPUS[name].source(repaired=repaired))
    return path


def report_of(name, *, repaired):
    path = written(name, repaired=repaired)
    is_option = repaired and "--assume" in CORPUS[name].fix
    assume = (
        re.findall(r"--assume (\S+)`", CORPUS[name].fix.replace("{file}", path.name)) if is_option else ()
    )
    return fe.check(f"{path}:factory", target=[CORPUS[name].target], assume=assume)


def eager(path):
    torch.manual_seed(0)
    module, args = runpy.run_path(str(path))["factory"]()
    with torch.no_grad():
        return module(*args)


@cache
def works(name):
    """Whether the repaired model exports cleanly and computes what the failing one does in eager mode."""
    report = report_of(name, repaired=True)
    if not report.is_clean or not all(verdict.is_exportable for verdict in report.verdicts):
        return False
    if not CORPUS[name].is_same:
        return True
    before, after = (eager(written(name, repaired=repaired)) for repaired in (False, True))
    torch.testing.assert_close(after, before)
    return True


@pytest.mark.parametrize("name", CORPUS)
def test_failing_model_gets_its_expected_fix(name):
    if torch.__version__ >= CORPUS[name].until:
        pytest.skip("this torch exports it")
    report = report_of(name, repaired=False)

    found = [(diagnostic.code, diagnostic.fix.message) for diagnostic in report.diagnostics]
    file = written(name, repaired=False).name
    assert [code for code, _ in found] == [CORPUS[name].code, *CORPUS[name].problems]
    assert CORPUS[name].fix.replace("{file}", file) in found[0][1]


# By default every third.
@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=pytest.mark.slow if index % 3 else ()) for index, name in enumerate(CORPUS)],
)
def test_the_fix_works_when_it_is_followed(name):
    assert works(name) == (name not in KNOWN_NOT_TO_WORK)


def test_share_of_working_fixes_matches_the_page():
    working = len(CORPUS) - len(KNOWN_NOT_TO_WORK)

    assert len(CORPUS) >= 25
    assert working / len(CORPUS) >= LEAST_SHARE
    assert f"{working} of {len(CORPUS)} printed fixes work" in PAGE.read_text()


def test_assume_is_suggested_only_if_the_trace_completed(tmp_path):
    body = "if x.sum() > 0:\n    x = x + 1\nfor _ in range(int(x.sum())):\n    x = x * 2\nreturn x"
    found = checked(tmp_path, Failing("FE201", "", body, body).source(repaired=False)).diagnostics

    assert found[0].code == "FE201"
    assert "for every input" not in found[0].fix.message


PADDED = """out = torch.zeros_like(x)
hit = F.one_hot(choice, 4).sum(0).nonzero()
for expert in hit:
    expert = expert[0]
    if {condition}:
        continue
    rows = torch.where(choice == expert)[0]
    out.index_add_(0, rows, x[rows] * expert)
return out"""


@pytest.mark.parametrize(
    ("condition", "is_known"), [("expert == self.padding", True), ("expert == choice[0]", False)]
)
def test_condition_on_the_loop_index_refers_to_the_loops_fix(condition, is_known, tmp_path):
    before = PADDED.format(condition=condition)
    after = before.replace("in hit:", "in [[i] for i in range(F.one_hot(choice, 4).sum(0).shape[0])]:")
    model = Failing(
        "FE301",
        "",
        before,
        after,
        "torch.randn(3, 8), torch.tensor([0, 1, 1])",
        "x, choice",
        "self.padding = 4",
    )
    loop, branch = checked(tmp_path, model.source(repaired=False)).diagnostics

    assert (loop.code, branch.code) == ("FE301", "FE201")
    said = f"fix line {loop.primary.span.line} first: this condition is then known during tracing"
    assert (branch.fix.message == said) is is_known
    assert checked(tmp_path, model.source(repaired=True)).is_clean is is_known


PRECOMPUTED = """import torch
from torch import nn


def borders(lengths, kwargs):
    if kwargs is not None and (found := kwargs.pop("borders", None)) is not None:
        return found
    made = [0]
    for length in lengths:
        made += [3] * (length // 3)
    return torch.tensor(made).cumsum(-1, dtype=torch.int32)


class Model(nn.Module):
    def forward(self, x, lengths, **kwargs):
        return x + borders(lengths, kwargs).sum()


def factory():
    return Model(), (), {"x": torch.ones(2, 6), "lengths": torch.tensor([3, 6])}
"""


def test_fix_passes_the_precomputed_value_with_all_other_inputs(tmp_path):
    (found,) = checked(tmp_path, PRECOMPUTED).diagnostics
    specs = re.findall(r"--input '([^']+)'", found.fix.message)
    after = checked(tmp_path, PRECOMPUTED, inputs=[spec.replace("DIMS", "4") for spec in specs])

    assert found.code == "FE203"
    assert found.fix.message.startswith("pass `borders`, which `borders` then returns unchanged")
    assert specs == ["borders=int32[DIMS]", "x=float32[2,6]", "lengths=int64[2]"]
    assert after.is_clean
    assert all(verdict.is_exportable for verdict in after.verdicts)


def test_fix_does_not_pass_an_input_that_forward_rejects(tmp_path):
    listed = "from typing import TypedDict, Unpack\n\nNames = TypedDict('Names', {'mask': torch.Tensor})\n"
    named = PRECOMPUTED.replace("from torch import nn\n", f"from torch import nn\n{listed}")
    named = named.replace("lengths, **kwargs", "lengths, **kwargs: Unpack[Names]")

    (found,) = checked(tmp_path, named).diagnostics

    assert found.code == "FE203"
    assert found.fix.message.startswith("use a number that is known without data")


LOWERED = """import torch
from torch import nn


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(4, 4)

    def forward(self, x):
        return self.linear({operand})


def factory():
    return Model(), (torch.randn(2, 4),)
"""


@pytest.mark.parametrize(("operand", "code"), [("x.float()", "FE209"), ("torch.fft.fft(x).real", "FE202")])
def test_fix_suggests_float32_if_the_model_computes_in_float32(operand, code, tmp_path):
    (found,) = checked(tmp_path, LOWERED.format(operand=operand), dtype="bfloat16").diagnostics
    after = checked(tmp_path, LOWERED.format(operand=operand), dtype="float32")

    assert found.code == code
    assert found.fix.message.startswith("check the model in float32, `--dtype float32`, or convert")
    assert after.is_clean


def test_mixed_dtype_weights_get_no_dtype_fix(tmp_path):
    mixed = LOWERED.replace("nn.Linear(4, 4)", "nn.Linear(4, 4).bfloat16()").format(operand="x")

    (found,) = checked(tmp_path, mixed).diagnostics

    assert found.code == "FE209"
    assert found.fix.message == "convert before the call: `input.to(torch.bfloat16)`"


def test_unknown_error_says_that_no_fix_is_known(tmp_path):
    failing = Failing("FE202", "no fix is known", "raise OSError('of its own')", "return x")

    (found,) = checked(tmp_path, failing.source(repaired=False)).diagnostics

    assert found.code == "FE202"
    assert found.fix.message.startswith("no fix is known for this error")


def test_modulo_of_a_symbolic_size_by_a_float_is_rejected(tmp_path):
    before, after = (
        f"if {size} % 0.1 == 0:\n    return x\nreturn 2 * x" for size in ("x.shape[0]", "int(x.shape[0])")
    )
    model = Failing("FE202", "", before, after)

    (found,) = checked(tmp_path, model.source(repaired=False), dynamic_shapes="auto").diagnostics

    assert (found.code, source_text(found.primary.span)) == ("FE202", "x.shape[0] % 0.1")
    assert "fix the dimension to one size with `int(size)`" in found.fix.message
    assert checked(tmp_path, model.source(repaired=True), dynamic_shapes="auto").is_clean
