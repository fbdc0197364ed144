"""What is known of a program goes into its archive, in Python as on the command line."""

from __future__ import annotations

import warnings
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import nn

pytest.importorskip("safetensors")
from safetensors.torch import save_file

import fakexport as fe
from fakexport.archive import WeightsLeftBehind, describe
from fakexport.capture import UnboundConstants
from fakexport.cli import main

MODEL = """
import torch

class Scaled(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = torch.nn.Linear(4, 2)
        self.scale = self.linear.weight.detach().amax()
        self.noise = torch.randn(2)

    def forward(self, x):
        return self.linear(x) * self.scale + self.noise

def factory():
    return Scaled().eval(), (torch.zeros(3, 4),)
"""
LINEAR = """
import torch

def f():
    return torch.nn.Linear(4, 2).eval(), (torch.zeros(3, 4),)
"""
EXPORT = ["export", "m.py:factory", "--target", "H100", "--dtype", "bfloat16", "--dynamic", "x.0=2..8"]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "m.py").write_text(MODEL)
    (tmp_path / "l.py").write_text(LINEAR)
    return tmp_path


def factory():
    space: dict = {}
    exec(MODEL, space)
    return space["factory"]()


@pytest.mark.usefixtures("folder")
def test_a_checked_program_is_saved_as_the_command_line_writes_it() -> None:
    assert main([*EXPORT, "-o", "a.pt2"]) == 0
    report = fe.check("m.py:factory", targets=["H100"], dtype="bfloat16", dynamic_shapes=["x.0=2..8"])
    fe.save(report.verdicts[0].program, "b.pt2", root=Path.cwd())

    assert Path("a.pt2").read_bytes() == Path("b.pt2").read_bytes()


@pytest.mark.usefixtures("folder")
def test_an_exported_program_has_its_facts_and_the_reasons_of_its_constants() -> None:
    with torch.random.fork_rng(devices=[]):
        torch.seed()  # Whichever test ran before, no seed was chosen.
        assert main([*EXPORT, "-o", "a.pt2"]) == 0
        with pytest.warns(UnboundConstants):
            program = fe.export(factory, topology="H100", dtype=torch.bfloat16, dynamic_shapes=["x.0=2..8"])
    written = fe.save(program, "b.pt2")

    reasons = {known.name: known.reason for known in written.only.unbound_constants}
    assert set(reasons.values()) == {"parameter", "random"}
    expected, found = describe("a.pt2").only.manifest, describe("b.pt2").only.manifest
    assert (expected.source, found.source) == ("m.py:factory", "factory")
    assert replace(found, source="") == replace(expected, source="")


@pytest.mark.usefixtures("folder")
def test_facts_are_handed_on_as_on_the_command_line() -> None:
    torch.manual_seed(0)
    save_file(nn.Linear(4, 2).state_dict(), "w.safetensors")
    for command in (
        "export l.py:f --target H100 -o p.pt2",
        "retarget p.pt2 --to cpu -o moved.pt2",
        "bind p.pt2 w.safetensors --device-map cpu -o bound.pt2",
        "bundle one=p.pt2 two=p.pt2 -o bundle.pt2",
    ):
        assert main(command.split()) == 0

    program = fe.load("p.pt2")
    fe.save(program, "p2.pt2")
    fe.save(fe.retarget(program, "cpu"), "moved2.pt2")
    fe.save(fe.bind("p.pt2", "w.safetensors", device_map="cpu"), "bound2.pt2")
    fe.save_bundle({"one": program, "two": fe.load("p.pt2")}, "bundle2.pt2")

    for name in ("p", "moved", "bound", "bundle"):
        assert Path(f"{name}2.pt2").read_bytes() == Path(f"{name}.pt2").read_bytes(), name
    assert describe("bound2.pt2").only.manifest.source == "l.py:f"


def test_a_writer_says_that_weights_are_left_behind(tmp_path: Path, capsys) -> None:
    program = fe.export(lambda: nn.Linear(4, 2), (torch.zeros(3, 4),))
    bound = fe.bind(program, dict(nn.Linear(4, 2).state_dict()))
    fe.save(bound, tmp_path / "full.pt2")
    moved = fe.retarget(bound, "cuda:0", topology="H100")

    with pytest.warns(WeightsLeftBehind, match="2 weights, such as weight, were left behind"):
        fe.save(moved, tmp_path / "moved.pt2")
    with pytest.warns(WeightsLeftBehind, match="method one, is without weights"):
        fe.save_bundle({"one": moved}, tmp_path / "bundle.pt2")
    code = main(["retarget", f"{tmp_path}/full.pt2", "--to", "cpu=cuda:0", "-o", f"{tmp_path}/out.pt2"])

    said = capsys.readouterr().err
    assert code == 0
    assert said.startswith(f"warning: {tmp_path}/out.pt2 is without weights: 2 weights, such as weight, were")
    assert said.count("\n") == 1


def test_weights_that_stay_are_kept_without_a_word(tmp_path: Path) -> None:
    program = fe.export(lambda: nn.Linear(4, 2), (torch.zeros(3, 4),), topology="H100")
    state = dict(nn.Linear(4, 2).state_dict())

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        manifest = fe.save(fe.bind(program, state, device_map="cpu"), tmp_path / "a.pt2")
        fe.save(fe.retarget(fe.load(tmp_path / "a.pt2"), "cpu"), tmp_path / "b.pt2")
        fe.save(fe.retarget(program, "cpu"), tmp_path / "c.pt2")

    assert manifest.only.weights == "inside"
    assert torch.equal(fe.load(tmp_path / "b.pt2").state_dict["weight"], state["weight"])
