"""All problems of a model are found in one check, each at its line, with what was assumed to get there."""

from __future__ import annotations

import re
from types import SimpleNamespace

import pytest
import torch
from torch import nn

import fakexport as fe
from fakexport.report import render_report

EVERYTHING = """
import torch
from torch import nn


@torch.library.custom_op("several::scale_rows", mutates_args=())
def scale_rows(x: torch.Tensor) -> torch.Tensor:
    return x / x.sum(dim=-1, keepdim=True)


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(8, 8)

    def forward(self, x, steps):
        if x.sum() > 0:  # FE201
            x = x + 1
        for _ in range(int(steps.max())):  # FE203
            x = torch.tanh(x)
        x = scale_rows(x)  # FE401
        kept = x[x > 0]
        pairs = kept.split(2)  # FE301
        table = torch.ones(8, device="cpu")
        y = self.linear(x) + table  # FE502 H100
        y = scale_rows(y)
        if torch.equal(x, y):  # FE201
            y = y - 1
        n = steps[0].item()
        if n > 3:  # FE201
            y = y - 2
        return y, sum(pair.sum() for pair in pairs)


def factory():
    return Model(), (torch.linspace(-2, 1, 32).reshape(4, 8), torch.tensor([1, 3]))
"""


MODEL = """import torch
from torch import nn


class Model(nn.Module):
    def forward(self, x{more}):
{body}


def factory():
    return Model(), ({args},)
"""


def source(body, args="torch.ones(4)", more=""):
    """The source of a model; the first line of the body is line 7."""
    lines = "\n".join(f"        {line}" for line in body.strip().splitlines())
    return MODEL.format(body=lines, args=args, more=more)


def checked(tmp_path, source, **options):
    path = tmp_path / "model.py"
    path.write_text(source)
    return fe.check(f"{path}:factory", **options)


def marked(source, target="cpu"):
    """(line, code) of each comment `# FE201` or, for one target, `# FE502 H100`."""
    comments = (
        (number, re.search(r"# (FE\d+)(?: (\w+))?$", line))
        for number, line in enumerate(source.splitlines(), 1)
    )
    return sorted((number, m[1]) for number, m in comments if m and m[2] in (None, target))


def found(report, target="cpu"):
    return sorted((d.primary.span.line, d.code) for d in report.diagnostics if target in d.targets)


@pytest.mark.slow
@pytest.mark.parametrize("target", ["cpu", "H100"])
def test_every_problem_is_found_at_its_line(target, tmp_path):
    report = checked(tmp_path, EVERYTHING, target=[target])

    assert found(report, target) == marked(EVERYTHING, target)
    assert not report.verdicts[0].is_exportable
    assert all(d.primary.span.end_column for d in report.diagnostics)
    assert all(d.fix for d in report.diagnostics)


def test_every_assumption_is_noted(tmp_path):
    report = checked(tmp_path, EVERYTHING, target=["H100"])

    assumed = "to find further problems, assumed that "
    assert [note.removeprefix(assumed) for note in report.verdicts[0].notes] == [
        "`x.sum() > 0` is False at model.py:17",
        "`int(steps.max())` is 3 at model.py:19",
        "several::scale_rows returns a tensor like its first argument at model.py:21",
        "Eq(u2, 0) is False in `kept.split(2)` at model.py:23",
        "((u2 + 1)//2) is 2 in `kept.split(2)` at model.py:23",
        "aten::add gets `other` on cuda:0 at model.py:25",
        "several::scale_rows returns a tensor like its first argument at model.py:26",
        "aten::equal returns False at model.py:27",
        "`n > 3` is False at model.py:30",
    ]
    assert "found after" not in render_report(report)


def test_an_operator_that_is_called_twice_is_one_problem(tmp_path):
    report = checked(tmp_path, EVERYTHING)

    (kernel,) = (d for d in report.diagnostics if d.code == "FE401")
    assert kernel.count == 2


def test_strict_check_finds_all_problems(tmp_path):
    report = checked(tmp_path, EVERYTHING, strict=True)

    assert found(report) == marked(EVERYTHING)


LOOPS = source("""
while x.sum() < 100:  # FE204
    if x.max() > 3:  # FE201
        x = x + 1
    x = x * 2
while not (x > 0).all():  # FE204
    x = x.abs()
return [y if y.sum() > 0 else -y for y in x.unbind()]  # FE201
""")


def test_exploration_enters_and_leaves_loops(tmp_path):
    report = checked(tmp_path, LOOPS)

    assert found(report) == marked(LOOPS)
    assert all(d.count == 1 for d in report.diagnostics)


ENDLESS = source("""
is_done = lambda x: bool(x.sum() > 100)  # FE201
while not is_done(x):
    x = x + 1
return x
""")


@pytest.mark.slow
def test_exploration_leaves_loops_with_an_unknown_condition(tmp_path):
    report = checked(tmp_path, ENDLESS)

    assert found(report) == marked(ENDLESS)
    assert report.diagnostics[0].count < 500


GUARDED = source("""
if not torch.isfinite(x).all():  # FE201
    x.zero_()
    raise ValueError("not finite")
if x.min() > 0:  # FE201
    x = x.log()
return x
""")


def test_exploration_assumes_that_guarding_raises_do_not_happen(tmp_path):
    report = checked(tmp_path, GUARDED)

    assert found(report) == marked(GUARDED)
    assert report.verdicts[0].notes[0].endswith("that `not torch.isfinite(x).all()` is False at model.py:7")


CONSEQUENCE = """
import torch
from torch import nn


@torch.library.custom_op("several::rows", mutates_args=())
def rows(x: torch.Tensor) -> torch.Tensor:
    return x.sum(1)


class Model(nn.Module):
    def forward(self, x):
        return rows(x) @ torch.ones(4)


def factory():
    return Model(), (torch.randn(4, 8),)
"""


def test_error_caused_by_an_assumption_is_a_note(tmp_path):
    report = checked(tmp_path, CONSEQUENCE)

    (kernel,) = report.diagnostics
    assert kernel.code == "FE401"
    assert report.verdicts[0].notes[-1] == (
        "tracing stopped at model.py:13 with RuntimeError, which is caused by these assumptions and not by "
        "the model; there may be more problems after it"
    )


LAYERS = """
import torch
from torch import nn


class Layer(nn.Module):
    def forward(self, x):
        return x if x.sum() > 0 else -x  # FE201


def factory():
    return nn.Sequential(*[Layer() for _ in range(12)]), (torch.ones(4),)
"""


def test_equal_layers_are_one_problem(tmp_path):
    report = checked(tmp_path, LAYERS)

    (diagnostic,) = report.diagnostics
    assert (diagnostic.code, diagnostic.count) == ("FE201", 12)
    assert len(report.verdicts[0].notes) == 1


DIMENSIONS = source(
    """
a = x.reshape(4, 2, 4)  # FE302
if x.sum() > 0:  # FE201
    a = a + 1
b = y.reshape(6, 2)  # FE302
return a.sum() + b.sum()
""",
    "torch.randn(4, 8), torch.randn(6, 2)",
    ", y",
)


def test_each_specialized_dimension_is_reported_at_its_line(tmp_path):
    report = checked(tmp_path, DIMENSIONS, dynamic_shapes=["x.0=1..64", "y.0=2..64"])

    assert found(report) == marked(DIMENSIONS)
    messages = [d.primary.message for d in report.diagnostics if d.code == "FE302"]
    assert messages == ["requires x.0 to be 4 (Eq(8*s77, 32))", "requires y.0 to be 6 (Eq(2*s17, 12))"]


def test_exploration_runs_only_after_a_failure():
    """A model that exports is called twice more, to see whether calls are alike in the other grad mode."""
    calls = SimpleNamespace(made=())  # The items of a list in a closure would be restored.

    class Model(nn.Module):
        def __init__(self, is_exportable):
            super().__init__()
            self.is_exportable = is_exportable

        def forward(self, x):
            calls.made += (self.is_exportable,)
            return x if self.is_exportable or x.sum() > 0 else -x

    for is_exportable in (True, False):
        fe.check(lambda: (Model(is_exportable), (torch.zeros(3),)))  # noqa: B023

    assert calls.made == (True,) * 3 + (False,) * 3
