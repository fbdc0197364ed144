"""`fakexport compile --to aoti` and `fakexport run`, as a user types them; test_cpp_runner.py has models."""

import shutil
from pathlib import Path

import pytest
import torch

from tests.command_line import fakexport
from tests.forked import run_python

safetensors = pytest.importorskip("safetensors.torch")

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(shutil.which("g++") is None, reason="needs g++"),
]

TOLERANCE = {"rtol": 1e-5, "atol": 1e-5}

MODELS = """
import torch
from torch import nn


def mlp():
    return nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.Linear(16, 4)), (), {"input": torch.zeros(2, 8)}
"""
INPUTS = [{"input": torch.randn(batch, 8)} for batch in (1, 33)]
TOO_LARGE = {"input": torch.zeros(65, 8)}

EAGER = """
import sys, torch
from safetensors.torch import save_file, load_file
sys.path.insert(0, sys.argv[1])
import models
torch.manual_seed(0)
model, _, _ = getattr(models, sys.argv[2])()
save_file({name: tensor.clone() for name, tensor in model.state_dict().items()}, "weights.safetensors")
for index in range(2):
    with torch.no_grad():
        result = model(**load_file(f"in{index}.safetensors"))
    named = {"output": result} if isinstance(result, torch.Tensor) else dict(result.items())
    save_file({name: tensor.clone() for name, tensor in named.items()}, f"eager{index}.safetensors")
"""


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("models.py").write_text(MODELS)
    return tmp_path


def prepared() -> None:
    """The program of a model, its weights, inputs, and what eager gives for them; in the current folder."""
    for index, given in enumerate(INPUTS):
        safetensors.save_file(given, f"in{index}.safetensors")
    assert run_python(EAGER, Path.cwd(), "mlp").returncode == 0
    options = ("--target", "cpu", "--no-progress", "--dynamic", "input.0=1..64")
    fakexport("export", "models.py:mlp", *options, "-o", "program.pt2")


@pytest.mark.usefixtures("folder")
def test_a_program_is_compiled_once_and_run_with_its_weights():
    prepared()
    safetensors.save_file(TOO_LARGE, "large.safetensors")
    compile_ = ("compile", "program.pt2", "--to", "aoti", "--cache", "cache", "-o")

    made = fakexport(*compile_, "model.aoti.pt2")
    again = fakexport(*compile_, "bound.aoti.pt2", "weights.safetensors", "--weights", "beside")

    assert "compiled in" in made.stdout
    assert "from the cache" in again.stdout
    assert Path("bound.aoti.pt2").read_bytes() == Path("model.aoti.pt2").read_bytes()
    run = ("--trust", "--inputs", "in0.safetensors", "-o", "out.safetensors")
    for package in (("model.aoti.pt2", "weights.safetensors"), ("bound.aoti.pt2",)):
        fakexport("run", *package, *run)
        assert_equal("out.safetensors", "eager0.safetensors")
    inputs = ("--inputs", "in0.safetensors")
    assert_refused("pass --trust only for files you built", "run", "bound.aoti.pt2", *inputs)
    assert_refused("has no weights: pass a checkpoint", "run", "model.aoti.pt2", "--trust", *inputs)
    large = ("--trust", "--inputs", "large.safetensors")
    assert_refused("but the program expects at most", "run", "bound.aoti.pt2", *large)


def assert_equal(got: str, wanted: str) -> None:
    found, expected = safetensors.load_file(got), safetensors.load_file(wanted)
    assert len(found) == len(expected) > 0
    for output, tensor in zip(found.values(), expected.values(), strict=True):
        assert torch.allclose(output, tensor, **TOLERANCE)


def assert_refused(message: str, *arguments: object) -> None:
    refused = fakexport(*arguments, code=2)
    assert message in refused.stderr
    assert refused.stderr.count("\n") == 1


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            ("--to", "aoti", "--target", "H100", "--trust"),
            "compile without the checkpoint, and pass it to `fakexport run`",
        ),
        (("--to", "aoti", "--target", "MI300X"), "MI300X can only be compiled on a machine with this GPU"),
        (
            ("--to", "cpp-project", "--cache", "compiled"),
            "compile without the checkpoint, and pass it to `fakexport run`",
        ),
    ],
    ids=["with a checkpoint", "AMD", "cpp-project"],
)
def test_what_needs_the_gpu_is_refused_with_what_to_do(options, message, tmp_path):
    if torch.cuda.is_available():
        pytest.skip("there is a GPU here")
    (tmp_path / "models.py").write_text(MODELS)
    program, out = tmp_path / "program.pt2", tmp_path / "m.aoti.pt2"
    on_gpu = ("--target", "H100", "--device-map", "cuda:0")
    fakexport("export", f"{tmp_path}/models.py:mlp", *on_gpu, "--no-progress", "-o", program)

    refused = fakexport("compile", program, "w.safetensors", *options, "-o", out, code=2)

    command = f"fakexport compile {program} w.safetensors {' '.join(options)} -o {out}"
    assert message in refused.stderr
    assert refused.stderr.count("\n") == 1
    assert f"`{command}`" in refused.stderr or "without the checkpoint" in refused.stderr
    assert not out.exists()
