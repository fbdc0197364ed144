"""Programs that do more than compute: nothing opens them without trust, and `inspect` names the operators."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from torch import nn

import fakexport as fe
from fakexport.archive import describe, load_bundle, save_bundle
from fakexport.cli import main
from fakexport.files.container import ArchiveError

REASON = "calls aten.from_file.default, which opens or writes a file named by the program"


class Fills(nn.Module):
    def forward(self) -> torch.Tensor:
        return torch.zeros(16, dtype=torch.uint8).fill_(7)


@pytest.fixture
def victim(tmp_path: Path) -> Path:
    """A file that the program of `hostile` writes to, if it runs."""
    path = tmp_path / "victim"
    path.write_bytes(b"before")
    return path


def writes(victim: Path) -> torch.export.ExportedProgram:
    """A program that maps a file and fills it."""
    program = fe.export(Fills(), ())
    made = next(node for node in program.graph.nodes if node.op == "call_function")
    made.target = torch.ops.aten.from_file.default
    made.args, made.kwargs = (str(victim), True, 16), {"dtype": torch.uint8}
    return program


@pytest.fixture
def hostile(tmp_path: Path, victim: Path) -> Path:
    fe.save(writes(victim), tmp_path / "hostile.pt2")
    return tmp_path / "hostile.pt2"


def test_loading_refuses_it_by_name(hostile: Path) -> None:
    with pytest.raises(ArchiveError, match=REASON) as caught:
        fe.load(hostile)

    assert caught.value.is_trust_missing
    assert "\n" not in str(caught.value)


def test_a_file_of_torch_is_refused_as_well(tmp_path: Path, victim: Path) -> None:
    program = writes(victim)
    program.example_inputs = None
    torch.export.save(program, tmp_path / "stock.pt2")

    with pytest.raises(ArchiveError, match=REASON):
        fe.load(tmp_path / "stock.pt2")


def test_a_bundle_is_refused_for_one_of_its_programs(tmp_path: Path, victim: Path) -> None:
    save_bundle({"good": fe.export(Fills(), ()), "bad": writes(victim)}, tmp_path / "bundle.pt2")

    with pytest.raises(ArchiveError, match=REASON):
        load_bundle(tmp_path / "bundle.pt2")
    assert load_bundle(tmp_path / "bundle.pt2", trust=True).keys() == {"good", "bad"}


@pytest.mark.parametrize(
    "command",
    [
        "run hostile.pt2",
        "compile hostile.pt2 --to aoti -o out.pt2",
        "compare torch.nn:Identity hostile.pt2",
        "bind hostile.pt2 checkpoint.safetensors -o out.pt2",
        "diff hostile.pt2 hostile.pt2",
        "source hostile.pt2 -o out.py",
        "retarget hostile.pt2 --to cpu -o out.pt2",
        "inspect hostile.pt2 --devices",
    ],
    ids=lambda command: command.split()[0],
)
def test_every_command_that_opens_it_refuses_it(hostile, victim, command, capsys, monkeypatch):
    save_file({"x": torch.zeros(1)}, hostile.parent / "checkpoint.safetensors")
    monkeypatch.chdir(hostile.parent)

    code = main(command.split())

    assert code == 2
    assert REASON in capsys.readouterr().err
    assert victim.read_bytes() == b"before"
    assert not list(hostile.parent.glob("out.*"))


def test_a_trusted_one_runs(hostile: Path, victim: Path) -> None:
    assert main(["run", str(hostile), "--trust"]) == 0

    assert victim.read_bytes() == b"\7" * 16


def test_inspect_names_it(hostile: Path, capsys: pytest.CaptureFixture[str]) -> None:
    reason = "opens or writes a file named by the program"
    assert describe(hostile).only.program.refused_operators == {"aten.from_file.default": reason}

    assert main(["inspect", str(hostile)]) == 0
    assert f"needs --trust aten.from_file.default {reason}" in capsys.readouterr().out
    assert main(["inspect", str(hostile), "--format", "json"]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert shown["methods"]["model"]["program"]["refused_operators"] == {"aten.from_file.default": reason}


def test_an_operator_that_is_handed_to_another_one_is_found(tmp_path: Path, victim: Path) -> None:
    program = fe.export(Fills(), ())
    made = next(node for node in program.graph.nodes if node.op == "call_function")
    made.target = torch.ops.higher_order.out_dtype
    made.args, made.kwargs = (torch.ops.aten.from_file.default, torch.uint8, str(victim), True, 16), {}
    fe.save(program, tmp_path / "handed.pt2")

    with pytest.raises(ArchiveError, match=REASON):
        fe.load(tmp_path / "handed.pt2")
    assert list(describe(tmp_path / "handed.pt2").only.program.refused_operators) == [
        "aten.from_file.default"
    ]
