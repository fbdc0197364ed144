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
from fakexport.diagnostics import source_text
from tests.unit.diagnose.repair_corpus import CORPUS, Failing

LEAST_SHARE = 0.9
# What is printed for these does not lead to a model that exports; each with the reason.
KNOWN_NOT_TO_WORK = {
    "rows that are kept one by one": "how many rows there are depends on data: only masking keeps the shape",
    "key of a dictionary": "which head runs depends on data: all have to run, and one be picked",
}
PAGE = Path(__file__).parents[3] / "docs" / "benchmarks.md"


@cache
def folder() -> Path:
    import tempfile

    return Path(tempfile.mkdtemp(prefix="fakexport-repairs-"))


def written(name, *, repaired):
    path = folder() / f"{'after' if repaired else 'before'}_{list(CORPUS).index(name)}.py"
    path.write_text(CORPUS[name].source(repaired=repaired))
    return path


def checked(name, *, repaired):
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
    report = checked(name, repaired=True)
    if not report.is_clean or not all(verdict.is_exportable for verdict in report.verdicts):
        return False
    if not CORPUS[name].is_same:
        return True
    before, after = (eager(written(name, repaired=repaired)) for repaired in (False, True))
    torch.testing.assert_close(after, before)
    return True


@pytest.mark.parametrize("name", CORPUS)
def test_the_failing_model_is_told_its_fix(name):
    if torch.__version__ >= CORPUS[name].until:
        pytest.skip("this torch exports it")
    report = checked(name, repaired=False)

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


@pytest.mark.slow
def test_the_share_of_fixes_that_work():
    working = sum(works(name) for name in CORPUS)

    assert len(CORPUS) >= 25
    assert working / len(CORPUS) >= LEAST_SHARE
    assert f"{working} of {len(CORPUS)} printed fixes work" in PAGE.read_text()


def test_an_answer_is_named_only_where_a_trace_with_it_ended(tmp_path):
    body = "if x.sum() > 0:\n    x = x + 1\nfor _ in range(int(x.sum())):\n    x = x * 2\nreturn x"
    path = tmp_path / "model.py"
    path.write_text(Failing("FE201", "", body, body).source(repaired=False))

    found = fe.check(f"{path}:factory").diagnostics

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
def test_a_condition_on_the_index_of_a_loop_is_decided_by_the_fix_of_the_loop(condition, is_known, tmp_path):
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
    path = tmp_path / "model.py"
    path.write_text(model.source(repaired=False))
    repaired = tmp_path / "repaired.py"
    repaired.write_text(model.source(repaired=True))

    loop, branch = fe.check(f"{path}:factory").diagnostics

    assert (loop.code, branch.code) == ("FE301", "FE201")
    said = f"repair line {loop.primary.span.line}: the condition is then known while tracing"
    assert (branch.fix.message == said) is is_known
    assert fe.check(f"{repaired}:factory").is_clean is is_known


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


def test_an_input_that_a_function_returns_as_it_is_is_named_with_all_others(tmp_path):
    path = tmp_path / "model.py"
    path.write_text(PRECOMPUTED)

    (found,) = fe.check(f"{path}:factory").diagnostics
    specs = re.findall(r"--input '([^']+)'", found.fix.message)
    after = fe.check(f"{path}:factory", inputs=[spec.replace("DIMS", "4") for spec in specs])

    assert found.code == "FE203"
    assert found.fix.message.startswith("pass `borders`, which `borders` returns as it is")
    assert specs == ["borders=int32[DIMS]", "x=float32[2,6]", "lengths=int64[2]"]
    assert after.is_clean
    assert all(verdict.is_exportable for verdict in after.verdicts)


def test_an_input_that_the_model_does_not_take_is_not_named(tmp_path):
    path = tmp_path / "model.py"
    listed = "from typing import TypedDict, Unpack\n\nNames = TypedDict('Names', {'mask': torch.Tensor})\n"
    path.write_text(
        PRECOMPUTED.replace("from torch import nn\n", f"from torch import nn\n{listed}").replace(
            "lengths, **kwargs", "lengths, **kwargs: Unpack[Names]"
        )
    )

    (found,) = fe.check(f"{path}:factory").diagnostics

    assert found.code == "FE203"
    assert found.fix.message.startswith("use a number that is known without the data")


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
def test_a_model_that_computes_in_float32_is_told_to_be_checked_in_it(operand, code, tmp_path):
    path = tmp_path / "model.py"
    path.write_text(LOWERED.format(operand=operand))

    (found,) = fe.check(f"{path}:factory", dtype="bfloat16").diagnostics
    after = fe.check(f"{path}:factory", dtype="float32")

    assert found.code == code
    assert found.fix.message.startswith("check the model in float32, `--dtype float32`, or convert")
    assert after.is_clean


def test_a_model_of_mixed_weights_is_not_told_to_be_checked_in_another_dtype(tmp_path):
    path = tmp_path / "model.py"
    path.write_text(LOWERED.replace("nn.Linear(4, 4)", "nn.Linear(4, 4).bfloat16()").format(operand="x"))

    (found,) = fe.check(f"{path}:factory").diagnostics

    assert found.code == "FE209"
    assert found.fix.message == "convert before the call: `input.to(torch.bfloat16)`"


def test_every_error_has_a_fix_or_says_that_none_is_known(tmp_path):
    path = tmp_path / "model.py"
    failing = Failing("FE202", "no fix is known", "raise OSError('of its own')", "return x")
    path.write_text(failing.source(repaired=False))

    (found,) = fe.check(f"{path}:factory").diagnostics

    assert found.code == "FE202"
    assert found.fix.message.startswith("no fix is known for this error")


def test_a_modulo_that_is_not_exact_is_refused_and_one_of_integers_exports(tmp_path):
    before, after = ("x.shape[0] % 0.1 == 0", "int(x.shape[0]) % 0.1 == 0")
    paths = [tmp_path / f"{name}.py" for name in ("before", "after")]
    for path, condition in zip(paths, (before, after), strict=True):
        body = f"if {condition}:\n    return x\nreturn 2 * x"
        path.write_text(Failing("FE202", "", body, body).source(repaired=False))

    (found,) = fe.check(f"{paths[0]}:factory", dynamic_shapes="auto").diagnostics

    assert (found.code, source_text(found.primary.span)) == ("FE202", "x.shape[0] % 0.1")
    assert "give the dimension one size with `int(size)`" in found.fix.message
    assert fe.check(f"{paths[1]}:factory", dynamic_shapes="auto").is_clean
