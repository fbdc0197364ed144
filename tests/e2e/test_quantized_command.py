"""A model that torchao quantizes in its factory, from `check` to `run`."""

import json
import re
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from torch import nn

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
FLOAT32 = MODEL.replace("dtype=torch.bfloat16", "").replace(".bfloat16()", "").replace("512", "64")

Run = Callable[..., str]


@dataclass(frozen=True)
class Quantized:
    """A model in float32 with its files: weights, of another seed than `compare` draws, and inputs."""

    real: nn.Module
    original: Path
    weights: Path
    state: Path
    x: torch.Tensor
    inputs: Path
    source: str
    program: Path
    bound: Path


@pytest.fixture(scope="module")
def quantized(tmp_path_factory):
    folder = tmp_path_factory.mktemp("quantized")
    (folder / "model.py").write_text(FLOAT32)
    names: dict[str, object] = {}
    exec(FLOAT32, names)
    torch.manual_seed(1)
    real, (x,) = names["factory"]()  # type: ignore[operator]
    x = torch.randn(3, 64)
    state = torch.export.export(real, (x,)).run_decompositions({}).state_dict
    weights, inputs, original = (folder / f"{name}.safetensors" for name in ("model", "in", "original"))
    safetensors.save_file({name: tensor.detach().contiguous() for name, tensor in state.items()}, weights)
    safetensors.save_file({"input": x}, inputs)
    plain = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 64))
    safetensors.save_file(plain.state_dict(), original)
    torch.save(real.state_dict(), folder / "model.pt")
    source, program, bound = f"{folder / 'model.py'}:factory", folder / "a.pt2", folder / "b.pt2"
    assert main(["export", source, "--dynamic", "input.0=2..8", "-o", str(program)]) == 0
    assert main(["bind", str(program), str(weights), "-o", str(bound)]) == 0
    return Quantized(real, original, weights, folder / "model.pt", x, inputs, source, program, bound)


@pytest.fixture
def run(capsys):
    """`fakexport ARGUMENTS` in this process, which must end with 0; what it wrote."""

    def fakexport(*arguments: object) -> str:
        code = main([*map(str, arguments)])
        out, err = capsys.readouterr()
        assert code == 0, out + err
        return out

    return fakexport


@pytest.mark.slow
def test_a_quantized_model_is_checked_exported_bound_and_run_as_it_is(run, tmp_path):
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
    run("run", bound, "--inputs", tmp_path / "in.safetensors", "-o", out)

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
    (found,) = safetensors.load_file(out).values()
    assert torch.equal(found, real(x))


def test_the_original_in_high_precision_is_not_taken_for_it(capsys, run, tmp_path):
    (tmp_path / "model.py").write_text(MODEL)
    original = torch.nn.Sequential(torch.nn.Linear(512, 512), torch.nn.ReLU(), torch.nn.Linear(512, 512))
    safetensors.save_file(original.bfloat16().state_dict(), tmp_path / "model.safetensors")
    run("export", f"{tmp_path / 'model.py'}:factory", "--target", "cpu", "-o", tmp_path / "a.pt2")

    code = main(["verify-weights", str(tmp_path / "a.pt2"), str(tmp_path / "model.safetensors")])

    out, _ = capsys.readouterr()
    assert code == 1
    assert "FE701" in out
    assert "parametrizations.weight.original" in out


@pytest.mark.parametrize("config", ["Int8WeightOnlyConfig", "Float8WeightOnlyConfig"])
def test_a_quantized_program_is_compared_with_its_model(config, run, tmp_path):
    text = FLOAT32.replace("Int8WeightOnlyConfig", config)
    (tmp_path / "model.py").write_text(text)
    source, program, state = f"{tmp_path / 'model.py'}:factory", tmp_path / "a.pt2", tmp_path / "model.pt"
    names: dict[str, object] = {}
    exec(text, names)
    torch.manual_seed(1)
    torch.save(names["factory"]()[0].state_dict(), state)  # type: ignore[operator]
    run("export", source, "-o", program)

    drawn, given = run("compare", source, program), run("compare", source, program, state)

    assert "weights: from the model, constructed with seed 0" in drawn
    assert f"weights: from {state}" in given
    assert "equal bit for bit" in drawn
    assert "equal bit for bit" in given


@pytest.mark.slow
def test_a_file_of_wrappers_needs_torchao_and_a_bound_program_does_not(quantized, tmp_path):
    out = tmp_path / "out.safetensors"
    running = ["run", str(quantized.bound), "--inputs", str(quantized.inputs), "-o", str(out)]
    binding = ["bind", str(quantized.program), str(quantized.state), "-o", str(tmp_path / "b.pt2")]
    code = (
        "import sys; sys.modules['torchao'] = None; from fakexport.cli import main;"
        f"assert main({running}) == 0; del sys.modules['torchao'];"
        f"assert main({binding}) == 2; assert main({[*binding, '--library', 'torchao']}) == 0"
    )

    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, cwd=ROOT)

    assert done.returncode == 0, done.stderr
    assert done.stderr == (
        "error: model.pt is rejected: it contains torchao tensors: "
        "import torchao first, or pass `--library torchao`\n"
    )
    assert "8 weights bound" in done.stdout
    (found,) = safetensors.load_file(out).values()
    assert torch.equal(found, quantized.real(quantized.x))


@pytest.mark.slow
def test_that_a_model_imports_torchao_is_not_seen(quantized):
    code = f"import fakexport as fe; assert fe.check({quantized.source!r}).is_clean"

    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, cwd=ROOT)

    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("options", "name"),
    [
        (["--to", "onnx"], "model.onnx"),
        (["--to", "aoti"], "model.aoti.pt2"),
        (["--to", "executorch"], "portable.pte"),
    ],
)
def test_compiled_it_gives_what_eager_gives(options, name, run, quantized, tmp_path):
    made, out = tmp_path / name, tmp_path / "out.safetensors"
    run("compile", quantized.bound, *options, "-o", made)

    run("run", made, "--inputs", quantized.inputs, "-o", out, *["--trust"] * name.endswith(".pt2"))

    (found,) = safetensors.load_file(out).values()
    torch.testing.assert_close(found, quantized.real(quantized.x), rtol=0, atol=1e-6)
