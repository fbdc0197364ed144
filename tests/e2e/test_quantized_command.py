"""A model that torchao quantizes in its factory, from `check` to `run`."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from fakexport.cli import main
from tests.contract.source_tree import ROOT

pytest.importorskip("torchao")
safetensors = pytest.importorskip("safetensors.torch")

MODEL = """
import torch
from torch import nn
from torchao.quantization import Int8WeightOnlyConfig, quantize_


def factory():
    model = nn.Sequential(nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, 512)).bfloat16().eval()
    quantize_(model, Int8WeightOnlyConfig())
    return model, (torch.ones(4, 512, dtype=torch.bfloat16),)
"""
INTEGERS, SCALES, ZERO_POINTS, BIASES = 2 * 512 * 512, 2 * 512 * 4, 2 * 512, 2 * 512 * 2
WITHOUT_TORCHAO = (
    "import sys; sys.modules['torchao'] = None;"
    "from fakexport.cli import main; code = main(sys.argv[1:]);"
    "sys.exit(code)"
)

Run = Callable[..., str]


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Run:
    """`fakexport ARGUMENTS` in this process, which must end with 0; what it wrote."""

    def fakexport(*arguments: object) -> str:
        code = main([*map(str, arguments)])
        out, err = capsys.readouterr()
        assert code == 0, out + err
        return out

    return fakexport


def test_a_quantized_model_is_checked_exported_bound_and_run_as_it_is(run: Run, tmp_path: Path) -> None:
    source = tmp_path / "model.py"
    source.write_text(MODEL)
    names: dict[str, object] = {}
    exec(MODEL, names)
    torch.manual_seed(0)
    real, (x,) = names["factory"]()  # type: ignore[operator]
    x = torch.randn_like(x)
    state = torch.export.export(real, (x,)).run_decompositions({}).state_dict
    flat = {name: tensor.detach().contiguous() for name, tensor in state.items()}
    safetensors.save_file(flat, tmp_path / "model.safetensors")
    safetensors.save_file({"input": x}, tmp_path / "in.safetensors")
    archive, bound, out = (tmp_path / name for name in ("a.pt2", "b.pt2", "out.safetensors"))

    report = json.loads(
        run("check", f"{source}:factory", "--target", "cpu", "--target", "H100", "--format", "json")
    )
    run("export", f"{source}:factory", "--target", "cpu", "-o", archive)
    described = run("inspect", archive)
    tree = run("inspect", f"{source}:factory")
    run("verify-weights", archive, tmp_path / "model.safetensors")
    run("bind", archive, tmp_path / "model.safetensors", "-o", bound)
    arguments = ["run", bound, "--inputs", tmp_path / "in.safetensors", "-o", out]
    command = [sys.executable, "-c", WITHOUT_TORCHAO, *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=ROOT)

    held = INTEGERS + SCALES + ZERO_POINTS + BIASES
    assert sum(tensor.nbytes for tensor in flat.values()) == held == 531_456
    for verdict in report["targets"]:
        assert verdict["is_exportable"]
        assert sum(verdict["summary"]["parameters"]["bytes_per_device"].values()) == held
        assert "aten.linear.default" not in verdict["summary"]["operators"]
        assert verdict["summary"]["operators"]["aten.mm.default"] == 2
    assert "519.0 KiB" in described
    assert re.search(r"int8\s+513\.0 KiB", described)
    assert "519.0 KiB" in tree
    assert done.returncode == 0, done.stdout + done.stderr
    (found,) = safetensors.load_file(out).values()
    assert torch.equal(found, real(x))


def test_the_original_in_high_precision_is_not_taken_for_it(
    capsys: pytest.CaptureFixture[str], run: Run, tmp_path: Path
) -> None:
    (tmp_path / "model.py").write_text(MODEL)
    original = torch.nn.Sequential(torch.nn.Linear(512, 512), torch.nn.ReLU(), torch.nn.Linear(512, 512))
    safetensors.save_file(original.bfloat16().state_dict(), tmp_path / "model.safetensors")
    run("export", f"{tmp_path / 'model.py'}:factory", "--target", "cpu", "-o", tmp_path / "a.pt2")

    code = main(["verify-weights", str(tmp_path / "a.pt2"), str(tmp_path / "model.safetensors")])

    out, _ = capsys.readouterr()
    assert code == 1
    assert "FE701" in out
    assert "parametrizations.weight.original" in out
