"""From a source to an ONNX file and to its outputs, on the command line."""

import json
from pathlib import Path

import pytest
import torch

onnx = pytest.importorskip("onnx")
pytest.importorskip("onnxscript")
pytest.importorskip("onnxruntime")
safetensors = pytest.importorskip("safetensors.torch")
transformers = pytest.importorskip("transformers")

from fakexport.rules import rule  # noqa: E402
from tests.command_line import fakexport  # noqa: E402

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("compile_onnx")]

CONFIG = {
    "model_type": "vit", "architectures": ["ViTForImageClassification"], "hidden_size": 32,
    "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 64,
    "image_size": 32, "patch_size": 8,
}  # fmt: skip


@pytest.fixture(scope="module")
def vit(tmp_path_factory):
    """A weight-less archive, a checkpoint in the hub's layout, inputs, and the outputs of eager."""
    folder = tmp_path_factory.mktemp("vit")
    (folder / "config.json").write_text(json.dumps(CONFIG))
    source = f"hf:{folder / 'config.json'}"
    fakexport("export", source, "--dynamic", "pixel_values.0=1..16", "-o", folder / "vit.pt2")
    torch.manual_seed(0)
    model = transformers.ViTForImageClassification(transformers.ViTConfig(**CONFIG)).eval()
    model.save_pretrained(folder / "checkpoint")
    pixels = torch.randn(5, 3, 32, 32)
    with torch.no_grad():
        safetensors.save_file({"logits": model(pixels).logits}, folder / "expected.safetensors")
    safetensors.save_file({"pixel_values": pixels}, folder / "in.safetensors")
    return folder


def agrees(folder: Path, found: Path) -> bool:
    expected = safetensors.load_file(folder / "expected.safetensors")
    torch.testing.assert_close(safetensors.load_file(found), expected, rtol=0, atol=1e-6)
    return True


def test_a_bound_program_becomes_one_file(vit, tmp_path):
    out = tmp_path / "vit.onnx"

    done = fakexport("compile", vit / "vit.pt2", vit / "checkpoint", "--to", "onnx", "-o", out)
    ran = fakexport("run", out, "--inputs", vit / "in.safetensors", "-o", tmp_path / "out.safetensors")

    assert [path.name for path in tmp_path.glob("vit.*")] == ["vit.onnx"]
    assert done.stdout.startswith(f"{out}: {out.stat().st_size:,} bytes, compiled in ")
    assert done.stderr == ""
    assert (ran.stdout, ran.stderr) == ("logits  float32[5, 2]\n", "")
    assert agrees(vit, tmp_path / "out.safetensors")
    onnx.checker.check_model(out, full_check=True)


def test_a_program_without_weights_gets_them_when_it_runs(vit, tmp_path):
    out, result = tmp_path / "vit.onnx", tmp_path / "out.safetensors"

    done = fakexport("compile", vit / "vit.pt2", "--to", "onnx", "-o", out)
    alone = fakexport("run", out, "--inputs", vit / "in.safetensors", code=2)
    fakexport("run", out, vit / "checkpoint", "--inputs", vit / "in.safetensors", "-o", result)

    note = "note: the file has no weights; they will be in vit.safetensors next to it once they are bound"
    assert note in done.stderr
    assert out.read_bytes().count(b"modeling_vit.py") > 0
    assert alone.stderr.count("\n") == 1
    assert "has no weights" in alone.stderr
    assert agrees(vit, result)


def test_weights_beside_do_not_change_the_graph_and_every_process_writes_the_same(vit, tmp_path):
    from onnxruntime import InferenceSession

    weightless, bound = tmp_path / "0" / "vit.onnx", tmp_path / "1" / "vit.onnx"
    for out in (weightless, bound):
        out.parent.mkdir()

    fakexport("compile", vit / "vit.pt2", "--to", "onnx", "-o", weightless)
    fakexport(
        "compile", vit / "vit.pt2", vit / "checkpoint", "--to", "onnx", "--weights", "beside", "-o", bound
    )

    assert weightless.read_bytes() == bound.read_bytes()
    pixels = safetensors.load_file(vit / "in.safetensors")["pixel_values"]
    (logits,) = InferenceSession(bound).run(["logits"], {"pixel_values": pixels.numpy()})
    expected = safetensors.load_file(vit / "expected.safetensors")["logits"]
    torch.testing.assert_close(torch.from_numpy(logits), expected, rtol=0, atol=1e-6)


def test_what_onnx_cannot_express_is_a_finding(tmp_path):
    known = rule("FE802")
    (tmp_path / "model.py").write_text(known.failing_model or "")
    archive, out = tmp_path / "model.pt2", tmp_path / "model.onnx"
    fakexport("export", f"{tmp_path / 'model.py'}:factory", "-o", archive)

    found = fakexport("compile", archive, "--to", "onnx", "-o", out, code=1)

    assert found.stdout.startswith(f"error[FE802]: {known.message}\n")
    assert "model.py:7" in found.stdout
    assert "aten.median.dim has no translation to ONNX" in found.stdout
    assert not out.exists()
