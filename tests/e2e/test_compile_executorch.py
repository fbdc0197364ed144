"""`fakexport compile --to executorch` as a user runs it, and models that people have."""

import pytest
import torch

import fakexport as fe
from fakexport.archive import bind
from fakexport.deploy.executorch import compile_executorch, open_executorch
from tests.command_line import fakexport_here

pytest.importorskip("executorch")
transformers = pytest.importorskip("transformers")
safetensors = pytest.importorskip("safetensors.torch")

SOURCE = """
import torch
from torch import nn


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(4, 3)

    def forward(self, x):
        return {"logits": torch.relu(self.linear(x))}


class Median(nn.Module):
    def forward(self, x):
        return torch.nanmedian(x, -1).values


def factory():
    return Net(), (torch.zeros(2, 4),)


def median():
    return Median(), (torch.zeros(2, 4),)
"""


def test_compile_and_run(tmp_path):
    model, archive, weights = tmp_path / "model.py", tmp_path / "model.pt2", tmp_path / "model.safetensors"
    compiled, given, taken = tmp_path / "model.pte", tmp_path / "in.safetensors", tmp_path / "out.safetensors"
    model.write_text(SOURCE)
    linear = torch.nn.Linear(4, 3)
    safetensors.save_file(
        {"linear.weight": linear.weight.detach(), "linear.bias": linear.bias.detach()}, weights
    )
    x = torch.randn(5, 4)
    safetensors.save_file({"x": x}, given)
    fakexport_here("export", f"{model}:factory", "--dynamic", "x.0=1..8", "-o", archive)

    made = fakexport_here("compile", archive, weights, "--to", "executorch", "-o", compiled)
    ran = fakexport_here("run", compiled, "--inputs", given, "-o", taken)

    assert made.stdout.startswith(f"{compiled}: {compiled.stat().st_size:,} bytes, compiled in ")
    assert made.stderr == ""
    assert (ran.stdout, ran.stderr) == ("logits  float32[5, 3]\n", "")
    torch.testing.assert_close(
        safetensors.load_file(taken)["logits"], torch.relu(linear(x)), rtol=1e-6, atol=1e-6
    )


def test_what_cannot_be_lowered_is_shown_and_nothing_is_written(tmp_path):
    model, archive, compiled = tmp_path / "model.py", tmp_path / "model.pt2", tmp_path / "model.pte"
    model.write_text(SOURCE)
    fakexport_here("export", f"{model}:median", "-o", archive)

    failed = fakexport_here("compile", archive, "--to", "executorch", "-o", compiled, code=1)

    line = next(n for n, text in enumerate(SOURCE.splitlines(), 1) if "nanmedian" in text)
    assert "error[FE801]" in failed.stdout
    assert f"model.py:{line}" in failed.stdout
    assert not compiled.exists()


class Logits(torch.nn.Module):
    def __init__(self, model: torch.nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        options = {"use_cache": False} if x.dtype == torch.int64 else {}
        return self.model(x, **options).logits


def gpt2() -> Logits:
    config = transformers.GPT2Config(
        n_layer=2, n_embd=32, n_head=2, vocab_size=100, n_positions=64, bos_token_id=0, eos_token_id=0
    )
    return Logits(transformers.GPT2LMHeadModel(config)).eval()


def bound(factory, example, dims, folder):
    """The program of a fake model, with the weights of a real one from a file."""
    torch.manual_seed(0)
    model = factory()
    safetensors.save_file(
        {name: weight.clone() for name, weight in model.state_dict().items()}, folder / "w.safetensors"
    )
    program = fe.export(factory, (example,), dynamic_shapes=(dims,))
    return bind(program, folder / "w.safetensors"), model


# The greatest difference seen was 1.8e-7.
TOLERANCE = {"rtol": 1e-5, "atol": 1e-6}


@pytest.mark.slow
@pytest.mark.parametrize("backend", ["portable", pytest.param("xnnpack", marks=pytest.mark.exhaustive)])
def test_gpt2_with_two_dynamic_sizes(backend, tmp_path):
    dims = {0: torch.export.Dim("batch", max=8), 1: torch.export.Dim("length", max=64)}
    program, model = bound(gpt2, torch.zeros(2, 7, dtype=torch.int64), dims, tmp_path)

    opened = open_executorch(compile_executorch(program, tmp_path / "gpt2.pte", backend=backend).path)

    for shape in ((1, 5), (3, 7), (8, 64)):
        ids = torch.randint(0, 100, shape)
        with torch.no_grad():
            torch.testing.assert_close(opened({"x": ids})["output"], model(ids), **TOLERANCE)
