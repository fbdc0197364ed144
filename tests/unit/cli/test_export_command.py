"""`fakexport export`: the same archive with the memo of operators as without."""

import re
from pathlib import Path

import pytest

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
    def __init__(self):
        super().__init__()
        self.blocks = torch.nn.ModuleList(Block(at) for at in [2] * 8 + [3] * 8)

    def forward(self, x):
        for block in self.blocks:
            x = block(x)
        return x

def factory():
    return Model(), (torch.zeros(3, 4),)
"""


@pytest.fixture
def model(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "model.py").write_text(MODEL)
    return f"{tmp_path}/model.py:factory"


def export(source: str, *options: str) -> bytes:
    assert main(["export", source, "-o", "model.pt2", "--no-progress", *options]) == 0
    return Path("model.pt2").read_bytes()


def test_the_archive_is_that_of_a_trace_without_the_memo(model, monkeypatch):
    quick = export(model)
    monkeypatch.setenv("FAKEXPORT_SPEED", "0")

    assert export(model) == quick


def test_debug_says_how_many_operators_were_answered(model, capsys, monkeypatch):
    pattern = r"^debug: [1-9]\d* of \d+ operator results came from the cache$"

    export(model, "--debug")
    assert re.search(pattern, capsys.readouterr().err, re.MULTILINE)

    monkeypatch.setenv("FAKEXPORT_SPEED", "0")
    export(model, "--debug")
    assert not re.search(pattern, capsys.readouterr().err, re.MULTILINE)
