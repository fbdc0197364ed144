"""The plugin of pytest, in runs of pytest of their own."""

import subprocess
import sys
from importlib.metadata import entry_points

import pytest

from tests.forked import run_module

PLUGIN = "fakexport.cli.testing.plugin"
# An installation from before the entry point has none.
LOADED = [] if any(found.value == PLUGIN for found in entry_points(group="pytest11")) else ["-p", PLUGIN]
TESTS = """
import pytest
import torch
from torch import nn


class Gate(nn.Module):
    def forward(self, x):
        return x if x.sum() > 0 else -x


@pytest.fixture
def width():
    return 4


@pytest.mark.parametrize("rows", [2, 3])
@pytest.mark.fakexport(target=["cpu", "H100"], dtype="bfloat16", dynamic="x.0=2..8")
def test_exports(width, rows):
    model = nn.Linear(width, 2)
    assert model.weight.dtype is torch.bfloat16
    return Wrapped(model), (torch.zeros(rows, width),)


class Wrapped(nn.Module):
    def __init__(self, inner):
        super().__init__()
        self.inner = inner

    def forward(self, x):
        return self.inner(x)


@pytest.mark.fakexport(target="H100")
def test_does_not_export():
    return Gate(), (torch.zeros(3),)


@pytest.mark.fakexport()
def test_is_no_factory():
    assert True


@pytest.mark.fakexport("H100")
def test_misuses_the_mark():
    return nn.Linear(4, 2), (torch.zeros(3, 4),)


@pytest.mark.fakexport(taget="H100")
def test_mistypes_an_option():
    return nn.Linear(4, 2), (torch.zeros(3, 4),)


@pytest.mark.fakexport(target="H10")
def test_asks_for_an_unknown_device():
    return nn.Linear(4, 2), (torch.zeros(3, 4),)


@pytest.mark.fakexport(target="H100", dynamic="input.0=2..8")
class TestOfAClass:
    @pytest.mark.fakexport(target="A100")
    def test_fixture(self, fakexport_check):
        report = fakexport_check(lambda: (nn.Linear(4, 2), (torch.zeros(3, 4),)))
        assert [verdict.target.name for verdict in report.verdicts] == ["A100"]
        assert report.verdicts[0].summary.range_constraints
        other = fakexport_check(nn.Linear(4, 2), (torch.zeros(3, 4),), target="cpu", dynamic=None)
        assert not other.verdicts[0].summary.range_constraints

    def test_fixture_fails(self, fakexport_check):
        fakexport_check(lambda: (Gate(), (torch.zeros(3),)), dynamic=[])


def test_without_the_mark():
    pass
"""


OPTIONS = [*LOADED, "-p", "no:cacheprovider", "--strict-markers"]
OUTCOMES = "6 failed, 4 passed"


@pytest.fixture
def folder(tmp_path, monkeypatch):
    (tmp_path / "test_models.py").write_text(TESTS)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def fresh_pytest(*arguments):
    """pytest in an interpreter that has imported nothing."""
    command = [sys.executable, "-m", "pytest", *OPTIONS, *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_a_marked_test_is_a_factory_whose_model_must_export(folder):
    said = run_module("pytest", *OPTIONS, "-W", "error::pytest.PytestReturnNotNoneWarning").stdout

    assert OUTCOMES in said
    assert "error[FE201]: data-dependent branch: condition depends on tensor values" in said
    assert "return x if x.sum() > 0 else -x" in said
    assert "0 of 1 target exports; 1 error, 0 warnings" in said
    assert "test_is_no_factory returned None: a test with the mark fakexport must return a model" in said
    assert "the mark fakexport takes options by name" in said
    assert "unknown fakexport option 'taget'; the options are source, args, kwargs, target" in said
    assert "the model was not checked: unknown device 'H10'" in said
    assert "plugin.py" not in said  # The plugin is no part of what is shown.


def test_a_run_that_does_not_use_it_imports_no_torch(folder):
    (folder / "test_nothing.py").write_text(
        "import sys\n\n\ndef test_nothing():\n"
        "    assert 'fakexport.cli.testing.plugin' in sys.modules\n    assert 'torch' not in sys.modules\n"
    )

    done = fresh_pytest("test_nothing.py")

    assert done.returncode == 0, done.stdout


def test_the_mark_is_listed(folder):
    said = fresh_pytest("--markers").stdout

    assert "@pytest.mark.fakexport(target=..., dtype=..., dynamic=..., **options): " in said
