"""`fakexport export`: the proof that block reuse changed nothing, and what `--debug` says of it."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch
from torch import nn

import fakexport as fe
from fakexport.capture import ReuseMismatch
from fakexport.capture.block_reuse import reuse
from fakexport.capture.block_reuse.block_groups import Likes
from fakexport.cli import main

MODEL = """
import torch

class Block(torch.nn.Module):
    def __init__(self, at):
        super().__init__()
        self.at = at
        self.up = torch.nn.Linear(4, 4)

    def forward(self, x):
        return x + self.up(x) * self.at

class Model(torch.nn.Module):
    def __init__(self, scales):
        super().__init__()
        self.blocks = torch.nn.ModuleList(Block(at) for at in scales)

    def forward(self, x):
        for block in self.blocks:
            x = block(x)
        return x

def equal():
    return Model([2] * 8), (torch.zeros(3, 4),)

def different():
    return Model([2] * 8 + [3] * 8), (torch.zeros(3, 4),)
"""


@pytest.fixture
def model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "model.py").write_text(MODEL)
    return f"{tmp_path}/model.py"


@pytest.fixture
def broken(monkeypatch: pytest.MonkeyPatch) -> None:
    """Block reuse that takes different blocks for equal ones, and does not look at the last of them."""
    monkeypatch.setattr(reuse._Known, "fits", lambda known, key, state: True)
    monkeypatch.setattr(Likes, "needs_proof", lambda likes, module: False)
    monkeypatch.setattr(reuse.BlockReuse, "unproven", ())


def export(source: str, *options: str) -> int:
    return main(["export", source, "-o", "model.pt2", "--no-progress", *options])


def test_a_verified_export_is_the_export(model: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert export(f"{model}:equal", "--no-reuse-blocks") == 0
    plain = Path("model.pt2").read_bytes()
    assert "verified" not in capsys.readouterr().err

    assert export(f"{model}:equal", "--verify-reuse") == 0

    assert "block reuse verified: the program is the same" in capsys.readouterr().err
    assert Path("model.pt2").read_bytes() == plain


@pytest.mark.usefixtures("broken")
def test_a_wrong_program_is_a_fault_of_ours_and_is_not_written(
    model: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert export(f"{model}:different", "--verify-reuse") == 1

    captured = capsys.readouterr()
    assert "FE001" in captured.out
    assert "with and without block reuse the program differs in the inputs of mul" in captured.out
    assert "verified" not in captured.err
    assert not Path("model.pt2").exists()


def test_there_is_nothing_to_verify_in_strict_mode(model: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert export(f"{model}:equal", "--verify-reuse", "--strict") == 2

    assert capsys.readouterr().err == (
        "error: block reuse cannot be verified in strict mode, which traces every block\n"
    )


def test_debug_says_how_many_calls_were_reused(model: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert export(f"{model}:equal", "--debug") == 0

    # How many are traced depends on what fake mode knows from earlier exports of the process.
    assert re.search("^debug: Block: [1-7] of 8 calls reused", capsys.readouterr().err, re.MULTILINE)


def test_debug_says_that_strict_mode_reuses_nothing(model: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert export(f"{model}:equal", "--debug", "--strict") == 0

    assert "debug: strict mode traces every block\n" in capsys.readouterr().err


class Block(nn.Module):
    def __init__(self, at: int) -> None:
        super().__init__()
        self.at = at
        self.up = nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.up(x) * self.at


def different() -> nn.Module:
    return nn.Sequential(*map(Block, [2] * 8 + [3] * 8))


@pytest.mark.usefixtures("broken")
def test_python_raises_what_differs() -> None:
    with pytest.raises(ReuseMismatch, match=r"the program differs in the inputs of mul_\d"):
        fe.export(different, (torch.zeros(3, 4),), verify_reuse=True)


def test_python_verifies_and_refuses_strict_mode() -> None:
    assert isinstance(
        fe.export(different, (torch.zeros(3, 4),), verify_reuse=True), torch.export.ExportedProgram
    )
    with pytest.raises(ValueError, match="block reuse cannot be verified in strict mode"):
        fe.export(different, (torch.zeros(3, 4),), strict=True, verify_reuse=True)


class ChangesItself(nn.Module):
    """As BigBird takes another attention, and others install hooks: in the first call."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = different()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if not hasattr(self, "is_ready"):
            self.is_ready = True
            x = x + 1
        result: torch.Tensor = self.blocks(x)
        return result


@pytest.mark.parametrize("source", [ChangesItself, ChangesItself()], ids=["factory", "module"])
def test_what_only_a_first_call_does_is_no_difference(source: object) -> None:
    fe.export(source, (torch.zeros(3, 4),), verify_reuse=True)

    report = fe.check(source, (torch.zeros(3, 4),), verify_reuse=True)

    assert report.verdicts[0].is_exportable
