"""`fakexport run` where the model's package is not, and with its times."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import nn

import fakexport as fe
from tests.command_line import fakexport, fakexport_from_nothing, fakexport_here
from tests.contract.source_tree import ROOT

safetensors = pytest.importorskip("safetensors.torch")

WITHOUT_PACKAGES = (
    "import sys; from tests.round_trip.clean_process import PACKAGES, hide_packages; hide_packages();"
    "from fakexport.cli import main; code = main(sys.argv[1:]);"
    "assert not PACKAGES & sys.modules.keys();"
    "sys.exit(code)"
)


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
def counted(tmp_path: Path) -> tuple[Path, Path, dict[str, torch.Tensor]]:
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


@pytest.mark.slow
def test_a_bound_program_runs_where_no_package_of_models_can_be_imported(tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    config = transformers.GPT2Config(n_layer=2, n_embd=32, n_head=4, vocab_size=64, use_cache=False)
    torch.manual_seed(0)
    model = transformers.GPT2LMHeadModel(config).eval()
    model.save_pretrained(tmp_path / "checkpoint")
    archive, bound, out = (tmp_path / name for name in ("model.pt2", "bound.pt2", "out.safetensors"))
    fakexport_here("export", f"hf:{tmp_path}/checkpoint/config.json", "--dynamic", "auto", "-o", archive)
    fe.save(fe.bind(fe.load(archive), tmp_path / "checkpoint"), bound)
    ids = torch.randint(0, 64, (3, 7))
    inputs = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
    safetensors.save_file(inputs, tmp_path / "in.safetensors")

    command = ["run", bound, "--inputs", tmp_path / "in.safetensors", "-o", out]
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT_PACKAGES, *map(str, command)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )

    assert done.returncode == 0, done.stderr
    assert done.stdout == "logits  float32[3, 7, 64]\n"
    with torch.no_grad():
        assert_same(out, {"logits": model(**inputs).logits})


def test_timed_calls_leave_the_outputs_those_of_the_first(counted, tmp_path: Path) -> None:
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
def test_a_compiled_program_gives_the_same(counted, tmp_path: Path) -> None:
    bound, inputs, eager = counted
    out = tmp_path / "out.safetensors"

    done = fakexport("run", bound, "--inputs", inputs, "-o", out, "--compile", "--repeat", 1)

    assert "1 call)" in done.stderr
    assert_same(out, eager)


@pytest.mark.slow
def test_a_program_that_cannot_be_compiled_here_is_one_line(counted, monkeypatch, tmp_path: Path) -> None:
    bound, inputs, _ = counted
    monkeypatch.setenv("CXX", "/no/compiler")
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path / "cache"))

    done = fakexport_from_nothing("run", bound, "--inputs", inputs, "--compile", code=2)

    assert done.stderr.startswith("error: torch.compile failed: ")
    assert done.stderr.count("\n") == 1
    assert done.stdout == ""


def test_a_warm_up_without_timed_calls_is_a_wrong_call(counted) -> None:
    bound, inputs, _ = counted

    done = fakexport_here("run", bound, "--inputs", inputs, "--warmup", 3, code=2)

    assert "--warmup needs --repeat" in done.stderr
