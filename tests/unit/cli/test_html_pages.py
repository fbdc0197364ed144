"""`--html FILE`, which is written in addition to what a command prints."""

import pytest

from fakexport.cli import main
from tests.page_reading import assert_loads_nothing, read_page

MODEL = """
import torch
from torch import nn
def factory(): return nn.Sequential(*(nn.Linear(4, 4) for _ in range(3))), (torch.ones(2, 4),)
def branch():
    class Branch(nn.Module):
        def forward(self, x): return x if x.sum() > 0 else -x
    return Branch(), (torch.ones(2),)
"""


@pytest.fixture
def model(tmp_path):
    path = tmp_path / "models.py"
    path.write_text(MODEL)
    return path


def test_a_plan_has_its_page_and_prints_what_it_does_without(model, tmp_path, capsys):
    arguments = ["plan", f"{model}:factory", "--target", "H100", "--no-progress"]
    page = tmp_path / "plan.html"

    assert main(arguments) == 0
    printed = capsys.readouterr().out
    assert main([*arguments, "--html", str(page)]) == 0

    assert capsys.readouterr().out == printed
    root = read_page(page.read_text())
    assert_loads_nothing(root)
    assert [each.text for each in root.all("h2")][:2] == ["Sizes", "Memory timeline"]
    assert "0-2" in next(d for d in root.all("div") if d.attributes.get("class") == "tree").text


def test_a_check_that_fails_has_its_page(model, tmp_path, capsys):
    page = tmp_path / "check.html"

    assert main(["check", f"{model}:branch", "--no-progress", "--html", str(page)]) == 1

    root = read_page(page.read_text())
    (finding,) = root.all("article")
    assert next(finding.all("a")).attributes["href"] == "#FE201"
    assert "return x if x.sum() > 0 else -x" in next(root.all("pre")).text


@pytest.mark.parametrize(
    ("place", "message"), [("", "is a folder"), ("absent/page.html", "there is no folder")]
)
def test_a_place_that_cannot_be_written_is_refused_before_the_work(tmp_path, capsys, place, message):
    assert main(["check", "absent.py:factory", "--html", str(tmp_path / place)]) == 2

    captured = capsys.readouterr()
    assert message in " ".join(captured.err.split())
    assert "absent.py" not in captured.err
