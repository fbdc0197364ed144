"""No output replaces a file that the command reads, under any of its names."""

from __future__ import annotations

from pathlib import Path

import pytest
import safetensors.torch
import torch

from tests.command_line import fakexport_here

MODEL = """
import torch

def model():
    return torch.nn.Linear(3, 2), (torch.zeros(2, 3),)
"""


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("kept")
    (folder / "model.py").write_text(MODEL)
    safetensors.torch.save_file({"weight": torch.ones(2, 3), "bias": torch.ones(2)}, folder / "w.safetensors")
    safetensors.torch.save_file({"input": torch.ones(2, 3)}, folder / "in.safetensors")
    fakexport_here("export", f"{folder}/model.py:model", "-o", folder / "a.pt2")
    fakexport_here("bind", folder / "a.pt2", folder / "w.safetensors", "--link", "-o", folder / "linked.pt2")
    (folder / "hard.safetensors").hardlink_to(folder / "w.safetensors")
    (folder / "soft.safetensors").symlink_to("w.safetensors")
    return folder


@pytest.mark.parametrize(
    "command",
    [
        "export model.py:model -o model.py",
        "check model.py:model --html model.py",
        "check model.py:model --target cpu --target H100 --html model.py",
        "bind a.pt2 w.safetensors -o w.safetensors",
        "bind a.pt2 w.safetensors -o hard.safetensors",
        "bind a.pt2 w.safetensors -o soft.safetensors",
        "bind a.pt2 w.safetensors -o a.pt2",
        "bind a.pt2 . -o w.safetensors",
        "run a.pt2 w.safetensors --inputs in.safetensors -o in.safetensors",
        "run a.pt2 w.safetensors --inputs in.safetensors -o w.safetensors",
        "run a.pt2 w.safetensors --inputs in.safetensors -o a.pt2",
        "run linked.pt2 --inputs in.safetensors -o w.safetensors",
        "retarget a.pt2 --to cpu -o a.pt2",
    ],
)
def test_an_output_in_the_place_of_an_input_is_refused(
    command: str, made: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(made)
    if command == "bind a.pt2 . -o w.safetensors":
        monkeypatch.chdir(_alone(made))
    before = contents()

    done = fakexport_here(*command.split(), code=2)

    output = command.split()[-1]
    assert done.stderr.splitlines()[-1].startswith("error: cannot write ")
    assert done.stderr.endswith(
        f"{output}: is an input of this command: choose a different name for the output\n"
    )
    assert contents() == before


def _alone(made: Path) -> Path:
    """A folder with one checkpoint, which `bind` finds itself."""
    folder = made / "alone"
    folder.mkdir(exist_ok=True)
    for name in ("a.pt2", "w.safetensors"):
        (folder / name).write_bytes((made / name).read_bytes())
    return folder


def contents() -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in Path().iterdir() if path.is_file()}


def test_an_output_of_an_earlier_command_is_replaced(made: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(made)
    for _ in range(2):
        fakexport_here("bind", "a.pt2", "w.safetensors", "-o", "bound.pt2")
        fakexport_here("check", "model.py:model", "--html", "report.html")


@pytest.mark.slow
def test_weights_that_an_earlier_command_wrote_are_replaced(
    made: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("onnx")
    monkeypatch.chdir(made)
    options = ["--to", "onnx", "--weights", "beside", "-o", "out.onnx"]
    for _ in range(2):
        fakexport_here("compile", "a.pt2", "w.safetensors", *options)
