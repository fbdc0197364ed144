"""`check` and `export` agree about a program that no archive can have."""

import enum

import pytest
import torch
from torch import nn
from typer.testing import CliRunner

import fakexport as fe
from fakexport.cli.app import app


class Mode(enum.Enum):
    FAST = 1


class Doubled(nn.Module):
    def forward(self, x, mode):
        return x * 2


class Sparse(nn.Module):
    def forward(self, x):
        return x.to_sparse()


class Named(nn.Module):
    def forward(self, x):
        return x, 2**70


def with_enum():
    return Doubled(), (torch.zeros(2), Mode.FAST)


def of(model):
    def factory():
        return model(), (torch.zeros(2, 3),)

    return factory


UNSAVED = {"enum": with_enum, "sparse": of(Sparse), "large output": of(Named)}


@pytest.mark.parametrize("factory", UNSAVED.values(), ids=UNSAVED)
def test_a_program_that_cannot_be_saved_is_a_finding(factory, tmp_path):
    with pytest.raises(ValueError, match=r"\S"):
        fe.save(fe.export(factory), tmp_path / "program.pt2")

    report = fe.check(factory)

    assert [found.code for found in report.diagnostics if found.severity == "error"] == ["FE406"]
    assert not report.is_clean


def infinite():
    return Doubled(), (torch.ones(2), float("inf"))


def negative():
    return Doubled(), (torch.ones(2), -(2**63))


@pytest.mark.parametrize("factory", [infinite, negative])
def test_a_number_that_json_writes_in_its_own_way_is_kept(factory, tmp_path):
    """Such an archive was written and did not open."""
    x, number = factory()[1]
    fe.save(fe.export(factory), tmp_path / "program.pt2")

    program = fe.load(tmp_path / "program.pt2")

    torch.testing.assert_close(program.module()(x, number), x * 2)
    assert fe.check(factory).is_clean


MODEL = """
import torch
from torch import nn


class Model(nn.Module):
    def forward(self, x):
        return x.to_sparse()


def factory():
    return Model(), (torch.zeros(2, 3),)
"""


@pytest.mark.parametrize("command", [["check"], ["export", "-o", "program.pt2"]])
def test_the_commands_have_one_verdict(command, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "model.py").write_text(MODEL)

    result = CliRunner().invoke(app, [command[0], "model.py:factory", *command[1:]])

    assert result.exit_code == 1
    assert "error[FE406]" in result.output
    assert "model.py:8" in result.output
    assert not (tmp_path / "program.pt2").exists()
