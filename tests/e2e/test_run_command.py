"""`fakexport run` where the model's package is not, and with its times."""

import re
from pathlib import Path

import pytest
import torch
from torch import nn

import fakexport as fe
from tests.command_line import fakexport, fakexport_from_nothing, fakexport_here

safetensors = pytest.importorskip("safetensors.torch")


class Counted(nn.Module):
    """Has a state that each call changes, writes into its input, and returns both."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, x: torch.Tensor) -> dict[str, torch.Tensor]:
        self.calls.add_(1)
        return {"y": self.linear(x) + self.calls, "calls": self.calls, "x": x.mul_(2)}


@pytest.fixture
def counted(tmp_path):
    """A bound program, its inputs, and what eager's first call gives."""
    torch.manual_seed(0)
    module, x = Counted().eval(), torch.randn(3, 4)
    program = fe.export(lambda: Counted().eval(), (x,))
    fe.save(fe.bind(program, module.state_dict()), tmp_path / "bound.pt2")
    safetensors.save_file({"x": x}, tmp_path / "in.safetensors")
    with torch.no_grad():
        outputs = {name: tensor.clone() for name, tensor in module(x.clone()).items()}
    return tmp_path / "bound.pt2", tmp_path / "in.safetensors", outputs


def assert_same(path: Path, wanted: dict[str, torch.Tensor]) -> None:
    found = safetensors.load_file(path)
    assert found.keys() == wanted.keys()
    for name, tensor in wanted.items():
        torch.testing.assert_close(found[name], tensor)


def test_timed_calls_leave_the_outputs_those_of_the_first(counted, tmp_path):
    bound, inputs, eager = counted
    out = tmp_path / "out.safetensors"

    done = fakexport_here("run", bound, "--inputs", inputs, "-o", out, "--warmup", 2, "--repeat", 5)

    number = r"[\d.]+ (us|ms|s)"
    assert re.fullmatch(
        rf"first call  {number}\nlatency     {number} \([\d.]+( us| ms)? to {number}, 5 calls\)\n",
        done.stderr,
    )
    assert_same(out, eager)


@pytest.mark.slow
def test_a_compiled_program_gives_the_same(counted, tmp_path):
    bound, inputs, eager = counted
    out = tmp_path / "out.safetensors"

    done = fakexport("run", bound, "--inputs", inputs, "-o", out, "--compile", "--repeat", 1)

    assert "1 call)" in done.stderr
    assert_same(out, eager)


@pytest.mark.slow
def test_a_program_that_cannot_be_compiled_here_is_one_line(counted, monkeypatch, tmp_path):
    bound, inputs, _ = counted
    monkeypatch.setenv("CXX", "/no/compiler")
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path / "cache"))

    done = fakexport_from_nothing("run", bound, "--inputs", inputs, "--compile", code=2)

    assert done.stderr.startswith("error: torch.compile failed: ")
    assert done.stderr.count("\n") == 1
    assert done.stdout == ""


def test_a_warm_up_without_timed_calls_is_a_wrong_call(counted):
    bound, inputs, _ = counted

    done = fakexport_here("run", bound, "--inputs", inputs, "--warmup", 3, code=2)

    assert "--warmup needs --repeat" in done.stderr
