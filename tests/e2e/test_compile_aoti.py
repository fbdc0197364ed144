"""`fakexport compile --to aoti` and `fakexport run`, as a user types them, on three architectures."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import fakexport as fe
from fakexport.deploy import UnsuitableInputs
from fakexport.deploy.aoti import compile_aoti, open_aoti
from tests.command_line import fakexport
from tests.contract.source_tree import ROOT

safetensors = pytest.importorskip("safetensors.torch")
pytest.importorskip("transformers")

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(shutil.which("g++") is None, reason="needs g++"),
]

TOLERANCE = {"rtol": 1e-5, "atol": 1e-5}

MODELS = """
import torch
from torch import nn
from transformers import GPT2Config, GPT2LMHeadModel, ViTConfig, ViTModel


def mlp():
    return nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.Linear(16, 4)), (), {"input": torch.zeros(2, 8)}


def vit():
    config = ViTConfig(
        hidden_size=32, num_hidden_layers=2, num_attention_heads=4, intermediate_size=64, image_size=32,
        patch_size=8,
    )
    return ViTModel(config).eval(), (), {"pixel_values": torch.zeros(2, 3, 32, 32)}


def gpt2():
    config = GPT2Config(
        n_embd=32, n_layer=2, n_head=4, vocab_size=128, n_positions=64, use_cache=False, bos_token_id=0,
        eos_token_id=0,
    )
    return GPT2LMHeadModel(config).eval(), (), {"input_ids": torch.zeros(2, 8, dtype=torch.int64)}
"""
DYNAMIC = {
    "mlp": {"input.0": "1..64"},
    "vit": {"pixel_values.0": "1..8"},
    "gpt2": {"input_ids.0": "1..8", "input_ids.1": "2..64"},
}
INPUTS = {
    "mlp": [{"input": torch.randn(batch, 8)} for batch in (1, 33)],
    "vit": [{"pixel_values": torch.randn(batch, 3, 32, 32)} for batch in (1, 5)],
    "gpt2": [{"input_ids": torch.randint(0, 128, size)} for size in ((1, 64), (7, 3))],
}
TOO_LARGE = {
    "mlp": {"input": torch.zeros(65, 8)},
    "vit": {"pixel_values": torch.zeros(9, 3, 32, 32)},
    "gpt2": {"input_ids": torch.zeros(1, 65, dtype=torch.int64)},
}

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
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    Path("models.py").write_text(MODELS)
    return tmp_path


def prepared(name: str) -> None:
    """The program of a model, its weights, inputs, and what eager gives for them; in the current folder."""
    for index, given in enumerate(INPUTS[name]):
        safetensors.save_file(given, f"in{index}.safetensors")
    subprocess.run([sys.executable, "-W", "ignore", "-c", EAGER, Path.cwd(), name], check=True)
    ranges = [word for dim, bounds in DYNAMIC[name].items() for word in ("--dynamic", f"{dim}={bounds}")]
    fakexport("export", f"models.py:{name}", "--target", "cpu", "--no-progress", *ranges, "-o", "program.pt2")


@pytest.mark.parametrize("name", ["vit", "gpt2"])
@pytest.mark.usefixtures("folder")
def test_an_architecture_gives_what_eager_gives(name: str) -> None:
    prepared(name)

    made = compile_aoti(fe.load("program.pt2"), "model.aoti.pt2")

    opened = open_aoti(made.path, checkpoint="weights.safetensors")
    for index, given in enumerate(INPUTS[name]):
        got, wanted = opened(given), safetensors.load_file(f"eager{index}.safetensors")
        assert len(got) == len(wanted) > 0
        for output, tensor in zip(got.values(), wanted.values(), strict=True):
            assert torch.allclose(output, tensor, **TOLERANCE)
    with pytest.raises(UnsuitableInputs, match="but the program expects at most"):
        opened(TOO_LARGE[name])


@pytest.mark.usefixtures("folder")
def test_a_program_is_compiled_once_and_run_with_its_weights() -> None:
    prepared("mlp")
    safetensors.save_file(TOO_LARGE["mlp"], "large.safetensors")
    compile_ = ("compile", "program.pt2", "--to", "aoti", "--cache", "cache", "-o")

    made = fakexport(*compile_, "model.aoti.pt2")
    again = fakexport(*compile_, "bound.aoti.pt2", "weights.safetensors", "--weights", "beside")

    assert "compiling for the CPU with g++" in made.stderr
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


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("library") / "libsignal_ops.so"
    subprocess.run([sys.executable, ROOT / "examples/custom_ops/build.py", "-o", path], check=True)
    return path


def test_an_operator_of_a_library_is_called_from_native_code(tmp_path: Path, library: Path) -> None:
    model = ROOT / "examples" / "custom_ops" / "model.py"
    weights, inputs = tmp_path / "w.safetensors", tmp_path / "in.safetensors"
    safetensors.save_file({"linear.weight": torch.randn(8, 8), "linear.bias": torch.randn(8)}, weights)
    safetensors.save_file({"x": torch.randn(4, 8)}, inputs)
    program, package = tmp_path / "program.pt2", tmp_path / "model.aoti.pt2"
    own, out = ("--library", library), ("--inputs", inputs, "-o", tmp_path / "out.safetensors")
    fakexport("export", f"{model}:cpp_operator", *own, "--no-progress", "-o", program)

    fakexport("compile", program, weights, *own, "--to", "aoti", "-o", package)

    fakexport("run", program, weights, *own, *out)
    (tmp_path / "out.safetensors").rename(tmp_path / "wanted.safetensors")
    fakexport("run", package, "--trust", *own, *out)
    assert_equal(str(tmp_path / "out.safetensors"), str(tmp_path / "wanted.safetensors"))
    message = "the operator signal_ops.soft_clip.default is not registered: import the operator library"
    assert_refused(message, "run", package, "--trust", *out)


@pytest.mark.parametrize(
    "options",
    [
        ("--to", "aoti", "--weights", "beside", "--target", "H100", "--trust"),
        ("--to", "cpp-project", "--cache", "compiled"),
    ],
    ids=["aoti", "cpp-project"],
)
def test_a_device_that_is_not_here_is_refused_with_the_command_for_where_it_is(
    options: tuple[str, ...], tmp_path: Path
) -> None:
    if torch.cuda.is_available():
        pytest.skip("there is a GPU here")
    (tmp_path / "models.py").write_text(MODELS)
    program, out = tmp_path / "program.pt2", tmp_path / "m.aoti.pt2"
    on_gpu = ("--target", "H100", "--device-map", "cuda:0")
    fakexport("export", f"{tmp_path}/models.py:mlp", *on_gpu, "--no-progress", "-o", program)

    refused = fakexport("compile", program, "w.safetensors", *options, "-o", out, code=2)

    command = f"fakexport compile {program} w.safetensors {' '.join(options)} -o {out}"
    assert "cuda:0 is not available on this machine; copy the archive" in refused.stderr
    assert f"`{command}`" in refused.stderr
    assert not out.exists()
