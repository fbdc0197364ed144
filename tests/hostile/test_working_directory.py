"""The working directory of a command: a model may leave it, and another process may remove it."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.command_line import fakexport_here

MODEL = """
import os
import torch

os.chdir("/")

def model():
    return torch.nn.Linear(3, 2), (torch.zeros(2, 3),)
"""


@pytest.mark.parametrize(
    "command",
    [
        "export model.py:model -o OUTPUT",
        "check model.py:model --html OUTPUT",
        "check model.py:model --write json=OUTPUT",
        "plan model.py:model --timeline OUTPUT",
    ],
)
def test_a_model_that_leaves_it_moves_no_output(
    command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "model.py").write_text(MODEL)

    fakexport_here(*command.replace("OUTPUT", "output_of_test.json").split())

    assert (tmp_path / "output_of_test.json").exists()
    assert not Path("/output_of_test.json").exists()
    assert Path.cwd() == tmp_path


@pytest.mark.parametrize("command", ["check hf:gpt2", "inspect a.pt2", "lock", "export hf:gpt2 -o a.pt2"])
def test_one_that_is_gone_is_one_line(command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    gone = tmp_path / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    try:
        done = fakexport_here(*command.split(), code=2)
    finally:
        os.chdir(tmp_path)

    assert done.stderr.startswith("error: the working directory does not exist any more")
    assert done.stderr.count("\n") == 1
