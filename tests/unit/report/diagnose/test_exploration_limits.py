"""An exploration is bounded, shows the first finding before it starts, and charges no guess to the model."""

from __future__ import annotations

import sys

import pytest

from fakexport.cli import main
from fakexport.exporting.capture import exploration
from tests.unit.report.diagnose.test_several_problems import checked, source

BRANCH = "if x.sum() > 0:\n    x = x + 1\nfor _ in range(3):\n    x = x * 2\nreturn x"


def test_first_finding_is_reported_before_the_exploration(tmp_path, monkeypatch):
    told = []
    explored = []
    monkeypatch.setattr(
        exploration, "explore", lambda *a, **k: explored.append(len(told)) or exploration.Exploration()
    )

    checked(tmp_path, source(BRANCH), on_progress=told.append)

    (step,) = [progress for progress in told if progress.step == "explore"]
    assert (
        step.finding
        == "error[FE201] at model.py:7: data-dependent branch: condition depends on tensor values"
    )
    assert explored == [told.index(step) + 1]


def test_command_line_shows_the_first_finding_on_a_terminal(tmp_path, monkeypatch, capsys):
    path = tmp_path / "model.py"
    path.write_text(source(BRANCH))
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)

    code = main(["check", f"{path}:factory"])

    shown = capsys.readouterr().err
    finding = (
        "\r\x1b[K[1/1] cpu: error[FE201] at model.py:7: data-dependent branch: "
        "condition depends on tensor values\n"
    )
    assert code == 1
    assert finding + "\r\x1b[K[1/1] cpu: look for further problems ..." in shown


def test_exploration_stops_after_the_operator_limit(tmp_path, monkeypatch):
    monkeypatch.setattr(exploration, "MOST_OPERATORS", 5)

    report = checked(tmp_path, source(BRANCH))

    assert [diagnostic.code for diagnostic in report.diagnostics] == ["FE201"]
    assert report.verdicts[0].notes[-1] == (
        "tracing stopped after 5 operators; there may be more problems after that"
    )


def test_the_limit_is_the_same_each_time(tmp_path, monkeypatch):
    monkeypatch.setattr(exploration, "MOST_ANSWERS", 3)
    body = "n = x.sum()\n" + "\n".join(f"if n > {i}:\n    x = x + 1" for i in range(9)) + "\nreturn x"

    first, second = (checked(tmp_path, source(body)) for _ in range(2))

    assert [d.primary.span.line for d in first.diagnostics] == [8, 10, 12]
    assert first.diagnostics == second.diagnostics
    assert first.verdicts[0].notes[-1].startswith("tracing stopped after 3 assumptions")


GUESSES = {
    "a size that was made up does not fit": (
        "rows = [x[int(i)] for i in mask.nonzero()[:, 0]]\nreturn torch.stack(rows) @ torch.ones(3, 3)",
        "torch.randn(3, 3), torch.ones(3)",
        ["FE301", "FE203"],
    ),
    "a number that was made up is out of range": (
        "table = [x]\nreturn table[int(mask.sum())]",
        "torch.randn(3, 3), torch.arange(3)",
        ["FE203"],
    ),
    "torch fails at the symbols of an assumption": (
        "n = int(mask.sum())\nif n > 3:\n    x = x + 1\nraise RecursionError('u0')",
        "torch.randn(3, 3), torch.arange(3)",
        ["FE203"],
    ),
}


@pytest.mark.parametrize("case", GUESSES)
def test_error_after_an_assumed_value_is_not_reported(case, tmp_path):
    body, args, codes = GUESSES[case]

    report = checked(tmp_path, source(body, args, more=", mask"))

    assert [d.code for d in report.diagnostics] == codes
    if case != "a size that was made up does not fit":
        (last,) = [note for note in report.verdicts[0].notes if note.startswith("tracing stopped")]
        assert "is caused by these assumptions and not by the model" in last


def test_error_after_an_assumed_branch_is_reported(tmp_path):
    report = checked(tmp_path, source("if x.sum() > 0:\n    x = x + 1\nreturn x @ torch.ones(3, 3)"))

    assert [d.code for d in report.diagnostics] == ["FE201", "FE202"]
