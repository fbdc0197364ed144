"""AOTInductor packages for a GPU that this machine lacks."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from safetensors.torch import load_file, save_file
from torch import nn

import fakexport as fe
from fakexport.deploy import DeployError
from fakexport.deploy.aoti import gpu_compilation, open_aoti
from fakexport.deploy.aoti.package import CONSTANTS, KERNELS
from fakexport.emulation.devices import profile_named

pytest.importorskip("triton")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU here"),
    pytest.mark.skipif(sys.platform != "linux", reason="only Linux compiles for absent GPUs"),
]
BATCH = torch.export.Dim("batch", min=2, max=64)


class Perceptron(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(24, 40), nn.GELU(), nn.LayerNorm(40), nn.Linear(40, 8))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layers(x).softmax(-1)


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.qkv, self.out, self.norm = nn.Linear(64, 192), nn.Linear(64, 64), nn.LayerNorm(64)
        self.register_buffer("scale", torch.linspace(0.5, 1.5, 64), persistent=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, length, width = x.shape
        query, key, value = self.qkv(self.norm(x)).view(batch, length, 3, 4, 16).permute(2, 0, 3, 1, 4)
        found = F.scaled_dot_product_attention(query, key, value, is_causal=True)
        return F.silu(x + self.out(found.transpose(1, 2).reshape(batch, length, width))) * self.scale


class Counter(nn.Module):
    """Writes into a buffer in place, has a tied weight and another of its shape, reduces two dimensions."""

    def __init__(self) -> None:
        super().__init__()
        self.weight, self.other = nn.Parameter(torch.randn(6, 5)), nn.Parameter(torch.randn(6, 5))
        self.tied = self.weight
        self.register_buffer("seen", torch.arange(6.0))

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        self.seen.add_(x.sum((0, 2)))
        product = x @ self.weight.T - 2 * x @ self.other.T + torch.tanh(x @ self.tied.T)
        return product.amax((0, 1)), self.seen * 2


CASES = {
    "static": (Perceptron, (7, 24), None, (7, 24)),
    "dynamic": (Perceptron, (4, 24), {0: BATCH}, (61, 24)),
    "attention": (Attention, (2, 16, 64), {0: BATCH}, (5, 16, 64)),
    "written buffer": (Counter, (3, 6, 5), None, (3, 6, 5)),
}


@pytest.mark.parametrize("case", CASES)
def test_a_package_computes_what_eager_does(case, tmp_path, monkeypatch):
    """The compiled host code and the source of the kernels run; see `simulated_gpu`."""
    kind, shape, dynamic, other = CASES[case]
    torch.manual_seed(0)
    model, x = kind().eval(), torch.randn(other)
    shapes = None if dynamic is None else (dynamic,)
    program = fe.export(
        kind, (torch.zeros(shape),), target="H100", device_map="cuda:0", dynamic_shapes=shapes
    )
    path = [str(Path(__file__).parents[2]), *os.environ.get("PYTHONPATH", "").split(os.pathsep)]
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(path))
    monkeypatch.setattr(gpu_compilation, "_MODULE", "tests.e2e.noted_kernels")
    folder = tmp_path / "simulated"
    noted = []

    def compiled_for(gpu, archive, place):
        found = gpu_compilation.compiled_for(gpu, archive, place)
        noted.append((place / "kernels.json").read_text())
        return found

    monkeypatch.setattr("fakexport.deploy.aoti.compiling.compiled_for", compiled_for)
    fe.compile(program, tmp_path / "package.pt2", to="aoti")
    folder.mkdir()
    (tmp_path / "package.pt2").rename(folder / "package.pt2")
    (folder / "kernels.json").write_text(noted[0])
    constants = records(folder / "package.pt2").get(CONSTANTS)
    weights = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    if constants is not None:
        (folder / "constants.safetensors").write_bytes(constants)
        weights |= load_file(folder / "constants.safetensors")
    save_file({"x": x}, folder / "inputs.safetensors")
    save_file(weights, folder / "weights.safetensors")

    done = subprocess.run(
        [sys.executable, "-m", "tests.e2e.simulated_gpu", str(folder)],
        capture_output=True,
        text=True,
        check=False,
    )

    assert done.returncode == 0, done.stderr
    found = list(load_file(folder / "outputs.safetensors").values())
    with torch.no_grad():
        expected = model(x)
    expected = [expected] if isinstance(expected, torch.Tensor) else list(expected)
    for ours, eager in zip(found, expected, strict=True):
        torch.testing.assert_close(ours, eager, rtol=1e-5, atol=2e-6)
    assert within_limits(folder / "package.pt2", "H100")
    code = b"".join(text for name, text in records(folder / "package.pt2").items() if name.endswith(".cpp"))
    # The kernel that the GPU would select, not the math kernel.
    assert (b"scaled_dot_product_efficient_attention" in code) is (case == "attention")


def records(package: Path) -> dict[str, bytes]:
    with zipfile.ZipFile(package) as opened:
        return {name.removeprefix("model/"): opened.read(name) for name in opened.namelist()}


def within_limits(package: Path, gpu: str) -> bool:
    """Check architecture, registers and shared memory of each kernel. At least one exists."""
    profile, found = profile_named(gpu), records(package)
    kernels = json.loads(found[KERNELS])
    major, minor = profile.capability
    for name in (name for name in found if name.endswith(".cubin")):
        assert found[name][:4] == b"\x7fELF"
        assert found[name][0x30] == 10 * major + minor, name  # The flags of the ELF header.
    for kernel in kernels:
        assert kernel["registers"] * kernel["warps"] * 32 <= profile.registers_per_multiprocessor
        assert kernel["shared_bytes"] <= profile.shared_memory_per_block_optin_bytes
        assert kernel["local_bytes"] == 0
    return bool(kernels)


def test_the_weights_of_a_cpu_program_are_written_next_to_the_package(tmp_path):
    torch.manual_seed(0)
    model = Perceptron().eval()
    program = fe.export(Perceptron, (torch.zeros(7, 24),))
    bound = fe.bind(program, dict(model.state_dict()))

    made = fe.compile(bound, tmp_path / "package.pt2", to="aoti", target="A100")

    weights, package = made.files[1], made.files[0]
    assert load_file(weights).keys() == model.state_dict().keys()
    assert all(torch.equal(load_file(weights)[name], value) for name, value in model.state_dict().items())
    assert within_limits(package, "A100")
    assert any("were chosen by fixed rules, not by timing" in note for note in made.notes)
    with pytest.raises(DeployError, match="was compiled for cuda, which is not available on this machine"):
        open_aoti(package)
