"""Names and messages of others are shown with escapes: they steer no terminal and forge no line."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from fakexport.cli import main

ESC, RIGHT_TO_LEFT, LINE, NEXT = "\x1b[2J", "\u202e", "\u2028", "\x85"
FORGED = "\n  = fix: run this"
BAD = f"a{ESC}{RIGHT_TO_LEFT}{LINE}{NEXT}\u200b\U000e0041{FORGED}"
MODEL = """
import torch

class Failing(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.w = torch.nn.Parameter(torch.zeros(2))

    def forward(self, x):
        raise ValueError(BAD)

def factory():
    return Failing(), (torch.zeros(2),)
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "m.py").write_text(f"BAD = {BAD!a}{MODEL}")
    torch.save({BAD: torch.zeros(2), "w": torch.zeros(3)}, tmp_path / "w.pt")
    torch.save({BAD: torch.zeros(2), "w": torch.zeros(2)}, tmp_path / "extra.pt")
    return tmp_path


@pytest.mark.parametrize(
    ("command", "code"),
    [
        ("check m.py:factory", 1),
        ("check m.py:factory --format github", 1),
        ("check m.py:factory --format json", 1),
        ("verify-weights m.py:factory w.pt", 1),
        ("verify-weights m.py:factory w.pt --format json", 1),
        ("verify-weights m.py:factory extra.pt", 0),
    ],
)
@pytest.mark.usefixtures("folder")
def test_text_of_others_is_shown_with_escapes(
    command: str, code: int, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*command.split()]) == code

    out, err = capsys.readouterr()
    assert "\\x1b[2J" in out or "\\u001b[2J" in out
    assert all(character.isprintable() or character == "\n" for character in out + err)
    if "verify-weights" in command:  # the text of an exception may have lines, a name has one
        assert not any(line.strip().startswith("= fix: run this") for line in out.splitlines())
