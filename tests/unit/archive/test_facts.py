"""What is known of a program goes into its archive, in Python as on the command line."""

from __future__ import annotations

import json
import warnings
from pathlib import Path

import pytest
import torch
from torch import nn

pytest.importorskip("safetensors")
from safetensors.torch import save_file

import fakexport as fe
from fakexport.archive import WeightsDroppedWarning, describe
from fakexport.cli import main
from fakexport.exporting.capture import PartialExportWarning, UnboundConstants
from fakexport.models.sources import parse_dtype
from tests.architectures.architecture import Architecture

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
GATED = Path(__file__).with_name("gated_model.py")


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "m.py").write_text(MODEL)
    (tmp_path / "l.py").write_text(LINEAR)
    (tmp_path / "e.py").write_text(GATED.read_text())
    config = {
        "model_type": "gpt2",
        "n_layer": 2,
        "n_embd": 32,
        "n_head": 2,
        "vocab_size": 64,
        "n_positions": 64,
    }
    (tmp_path / "gpt2.json").write_text(json.dumps(config))
    return tmp_path


def factory():
    space: dict = {}
    exec(MODEL, space)
    return space["factory"]()


CASES = {
    "alone": ("l.py:f", {}),
    "gpu": ("l.py:f", {"target": "H100", "dynamic_shapes": ["input.0=2..64"]}),
    "constants": ("m.py:factory", {"target": "H100", "dtype": "bfloat16", "dynamic_shapes": ["x.0=2..8"]}),
    "condition": ("e.py:gated", {"target": "H100", "dynamic_shapes": "auto"}),
    "placed": ("e.py:gated", {"target": "cpu+H100", "device_map": "down=cuda:0,=cpu"}),
    "strict": ("e.py:gated", {"strict": True}),
    "language": ("hf:gpt2.json", {"target": "2xH100", "device_map": "balanced", "dynamic_shapes": "auto"}),
}


def options_of(case: dict) -> list[str]:
    names = {"target": "--target", "device_map": "--device-map", "dtype": "--dtype"}
    options = [word for name, option in names.items() if name in case for word in (option, case[name])]
    dynamic = case.get("dynamic_shapes", ())
    options += [
        w for text in ([dynamic] if isinstance(dynamic, str) else dynamic) for w in ("--dynamic", text)
    ]
    return options + ["--strict"] * case.get("strict", False)


@pytest.mark.usefixtures("folder")
@pytest.mark.filterwarnings("ignore:the program is incomplete")
@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.slow) if name == "language" else name for name in CASES]
)
def test_python_writes_what_the_command_line_writes(name: str) -> None:
    source, case = CASES[name]
    if source.startswith("hf:"):
        pytest.importorskip("transformers")
    asked = {**case, "dtype": parse_dtype(case["dtype"])} if "dtype" in case else case
    with torch.random.fork_rng(devices=[]):
        torch.seed()  # Whichever test ran before, no seed was chosen.
        assert main(["export", source, *options_of(case), "-o", "a.pt2"]) in (0, 1)
        program = fe.export(source, **asked)
    fe.save(program, "b.pt2")
    fe.save(fe.load("a.pt2"), "c.pt2")

    assert Path("a.pt2").read_bytes() == Path("b.pt2").read_bytes() == Path("c.pt2").read_bytes()


@pytest.mark.usefixtures("folder")
def test_a_checked_program_is_an_exported_one() -> None:
    report = fe.check("m.py:factory", target=["H100"], dtype="bfloat16", dynamic_shapes=["x.0=2..8"])
    fe.save(report.verdicts[0].program, "a.pt2")
    with pytest.warns(UnboundConstants):
        program = fe.export("m.py:factory", **{**CASES["constants"][1], "dtype": torch.bfloat16})
    fe.save(program, "b.pt2")

    assert Path("a.pt2").read_bytes() == Path("b.pt2").read_bytes()


@pytest.mark.usefixtures("folder")
def test_a_factory_is_named_and_its_constants_have_their_reasons() -> None:
    with torch.random.fork_rng(devices=[]):
        torch.seed()
        with pytest.warns(UnboundConstants):
            program = fe.export(factory, **{**CASES["constants"][1], "dtype": torch.bfloat16})
    written = fe.save(program, "b.pt2").only

    assert written.source == "factory"
    assert {known.reason for known in written.unbound_constants} == {"parameter", "random"}


@pytest.mark.usefixtures("folder")
def test_facts_are_handed_on_as_on_the_command_line() -> None:
    torch.manual_seed(0)
    save_file(nn.Linear(4, 2).state_dict(), "w.safetensors")
    for command in (
        "export l.py:f --target H100 -o p.pt2",
        "retarget p.pt2 --to cpu -o moved.pt2",
        "bind p.pt2 w.safetensors --devices cpu -o bound.pt2",
        "bundle one=p.pt2 two=p.pt2 -o bundle.pt2",
    ):
        assert main(command.split()) == 0

    program = fe.load("p.pt2")
    fe.save(program, "p2.pt2")
    fe.save(fe.retarget(program, "cpu"), "moved2.pt2")
    fe.save(fe.bind("p.pt2", "w.safetensors", devices="cpu"), "bound2.pt2")
    fe.save_bundle({"one": program, "two": fe.load("p.pt2")}, "bundle2.pt2")

    for name in ("p", "moved", "bound", "bundle"):
        assert Path(f"{name}2.pt2").read_bytes() == Path(f"{name}.pt2").read_bytes(), name
    assert describe("bound2.pt2").only.manifest.source == "l.py:f"


def test_a_writer_says_that_weights_are_left_behind(tmp_path: Path, capsys) -> None:
    program = fe.export(lambda: nn.Linear(4, 2), (torch.zeros(3, 4),))
    bound = fe.bind(program, dict(nn.Linear(4, 2).state_dict()))
    fe.save(bound, tmp_path / "full.pt2")
    moved = fe.retarget(bound, "cuda:0", target="H100")

    with pytest.warns(WeightsDroppedWarning, match="2 weights, such as weight, were dropped"):
        fe.save(moved, tmp_path / "moved.pt2")
    with pytest.warns(WeightsDroppedWarning, match="method one, has no weights"):
        fe.save_bundle({"one": moved}, tmp_path / "bundle.pt2")
    code = main(["retarget", f"{tmp_path}/full.pt2", "--to", "cpu=cuda:0", "-o", f"{tmp_path}/out.pt2"])

    said = capsys.readouterr().err
    assert code == 0
    assert said.startswith(f"warning: {tmp_path}/out.pt2 has no weights: 2 weights, such as weight, were")
    assert said.count("\n") == 1


def test_weights_that_stay_are_kept_without_a_word(tmp_path: Path) -> None:
    program = fe.export(lambda: nn.Linear(4, 2), (torch.zeros(3, 4),), target="H100")
    state = dict(nn.Linear(4, 2).state_dict())

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        manifest = fe.save(fe.bind(program, state, devices="cpu"), tmp_path / "a.pt2")
        fe.save(fe.retarget(fe.load(tmp_path / "a.pt2"), "cpu"), tmp_path / "b.pt2")
        fe.save(fe.retarget(program, "cpu"), tmp_path / "c.pt2")

    assert manifest.only.weights == "inside"
    assert torch.equal(fe.load(tmp_path / "b.pt2").state_dict["weight"], state["weight"])


def test_python_says_which_input_is_missing(tmp_path: Path) -> None:
    pytest.importorskip("transformers")

    with pytest.warns(
        PartialExportWarning, match=r"^FE104: .* without an input for .*pixel_values.* .* parameters"
    ):
        fe.export(Architecture("unlimited_ocr", "AutoModelForImageTextToText", True).source(tmp_path))
