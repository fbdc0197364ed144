"""A config with `quant_method: mxfp4` becomes the model whose experts are packed as in a checkpoint."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn
from torch.export import ExportedProgram
from transformers import AutoModelForCausalLM, GptOssConfig, GptOssForCausalLM

import fakexport as fe
from fakexport.deploy.opening import open_artifact
from tests.without_transformers import PROMPTS, logits_without_transformers

pytest.importorskip("accelerate")  # transformers loads no model in MXFP4 without it
PUBLISHED = ["model.layers.*.self_attn", "model.layers.*.mlp.router", "model.embed_tokens", "lm_head"]
CONFIG: dict[str, Any] = {
    "model_type": "gpt_oss",
    "architectures": ["GptOssForCausalLM"],
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "num_local_experts": 4,
    "num_experts_per_tok": 2,
    "vocab_size": 64,
    "sliding_window": 8,
    "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0},
    "dtype": "bfloat16",
}
PACKED = "mxfp4.grouped_mm.default"


def spec_of(path: Path, **settings: Any) -> str:
    quantization = {"quant_method": "mxfp4", "modules_to_not_convert": PUBLISHED, **settings}
    (path / "config.json").write_text(json.dumps({**CONFIG, "quantization_config": quantization}))
    return f"hf:{path}"


def checkpoint(path: Path, dtype: torch.dtype, **changed: Any) -> Path:
    """Write a checkpoint like those of OpenAI: of the unquantized model, with experts in blocks."""
    generator = torch.Generator().manual_seed(0)
    with torch.device("meta"):
        shapes = {
            n: t.shape for n, t in GptOssForCausalLM(GptOssConfig(**CONFIG | changed)).state_dict().items()
        }
    entries: dict[str, torch.Tensor] = {}
    for name, shape in shapes.items():
        if name.endswith(("gate_up_proj", "down_proj")):
            count, rows, columns = shape
            scales = (count, columns, rows // 32)
            for kind, first, last, size in (("blocks", 0, 256, (*scales, 16)), ("scales", 120, 127, scales)):
                drawn = torch.randint(first, last, size, dtype=torch.uint8, generator=generator)
                entries[f"{name}_{kind}"] = drawn
        else:
            entries[name] = (torch.randn(shape, generator=generator) / 6).to(dtype)
    save_file(entries, path / "model.safetensors", metadata={"format": "pt"})
    return path


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("gpt_oss")
    spec_of(path)
    return checkpoint(path, torch.bfloat16)


@pytest.fixture(scope="module")
def program(folder: Path) -> ExportedProgram:
    program = fe.export(f"hf:{folder}", target="H100", dynamic_shapes="auto")
    fe.save(program, folder / "program.pt2")
    return program


@pytest.fixture(scope="module")
def dequantized(folder: Path) -> nn.Module:
    """What transformers makes of the checkpoint on a CPU."""
    model, found = AutoModelForCausalLM.from_pretrained(folder, output_loading_info=True)
    assert not any(found[kind] for kind in ("missing_keys", "unexpected_keys", "mismatched_keys")), found
    assert model.dtype is torch.bfloat16
    assert not any(parameter.dtype is torch.uint8 for parameter in model.parameters())
    loaded: nn.Module = model
    return loaded


@pytest.mark.slow
def test_it_computes_what_transformers_computes_with_dequantized_weights(
    program: ExportedProgram, dequantized: Any, folder: Path
) -> None:
    on_a_cpu = fe.retarget(fe.load(folder / "program.pt2"), {"cuda:0": "cpu"})
    bound = fe.bind(on_a_cpu, folder / "model.safetensors").module()

    for shape in ((2, 12), (3, 7), (1, 1), (1, 40)):
        ids = torch.randint(0, 64, shape, generator=torch.Generator().manual_seed(1))
        with torch.no_grad():
            expected = dequantized(input_ids=ids, use_cache=False).logits
        found = bound(input_ids=ids, attention_mask=torch.ones_like(ids))["logits"]

        assert torch.equal(found, expected), shape


def test_names_dtypes_and_bytes_are_those_of_the_checkpoint(program: ExportedProgram, folder: Path) -> None:
    summary = fe.summary(program)

    stored = load_file(folder / "model.safetensors")
    assert {n: (t.dtype, t.shape) for n, t in program.state_dict.items()} == {
        n: (t.dtype, t.shape) for n, t in stored.items()
    }
    nbytes = sum(tensor.nbytes for tensor in stored.values())
    assert summary.parameters.bytes_per_device == {"cuda:0": nbytes}
    with torch.device("meta"):
        unpacked = sum(each.numel() for each in GptOssForCausalLM(GptOssConfig(**CONFIG)).parameters())
    assert summary.parameters.elements == unpacked
    assert fe.summary(fe.load(folder / "program.pt2")).parameters.elements == unpacked
    assert summary.operators[PACKED] == 2 * 2  # matrices and layers
    assert "aten._grouped_mm.default" not in summary.operators
    assert fe.verify_weights(program, folder / "model.safetensors").is_bindable


def test_modules_that_are_not_converted_keep_their_weights(tmp_path: Path) -> None:
    program = fe.export(spec_of(tmp_path, modules_to_not_convert=["model.layers.0.mlp"]), target="H100")

    experts = {name: tensor.dtype for name, tensor in program.state_dict.items() if ".mlp." in name}
    first = {name for name in experts if name.startswith("model.layers.0.")}
    assert Counter(experts[name] for name in first) == {torch.bfloat16: 6}
    packed = {name for name, dtype in experts.items() if dtype is torch.uint8}
    assert packed == {
        f"model.layers.1.mlp.experts.{matrix}_proj_{kind}"
        for matrix in ("gate_up", "down")
        for kind in ("blocks", "scales")
    }
    assert fe.summary(program).operators[PACKED] == fe.summary(program).operators["aten._grouped_mm.default"]


def test_a_config_that_asks_for_dequantized_weights_is_the_unquantized_model(tmp_path: Path) -> None:
    report = fe.check(spec_of(tmp_path, dequantize=True), target="H100")

    assert report.is_clean, report.diagnostics
    (verdict,) = report.verdicts
    assert verdict.program is not None
    with torch.device("meta"):
        plain = GptOssForCausalLM(GptOssConfig(**CONFIG)).bfloat16().state_dict()
    assert {n: (t.dtype, t.shape) for n, t in verdict.program.state_dict.items()} == {
        n: (t.dtype, t.shape) for n, t in plain.items()
    }


def test_a_program_for_a_cpu_binds_what_transformers_dequantizes(
    dequantized: nn.Module, folder: Path, tmp_path: Path
) -> None:
    with pytest.warns(fe.PartialExportWarning, match="FE105"):
        fe.save(fe.export(f"hf:{folder}"), tmp_path / "cpu.pt2")
    program = fe.load(tmp_path / "cpu.pt2")  # which has forgotten its model of transformers

    report = fe.verify_weights(program, folder)
    bound = fe.bind(program, folder)

    assert not report.findings, report
    expected = dequantized.state_dict()
    assert all(torch.equal(tensor, expected[name]) for name, tensor in bound.state_dict.items())


def test_ranks_are_refused_by_name(folder: Path) -> None:
    with pytest.raises(fe.FakexportError, match="does not support quantized weights"):
        fe.export(f"hf:{folder}", target="2xH100", parallel="tp=2")


@pytest.mark.slow
@pytest.mark.parametrize("form", ["executorch", "onnx", "aoti"])
def test_compilers_get_operators_that_they_have(form: Any, tmp_path: Path) -> None:
    if form != "aoti":
        pytest.importorskip(form)
    spec = spec_of(tmp_path)
    settings = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(settings | {"dtype": "float32", "num_hidden_layers": 1}))
    checkpoint(tmp_path, torch.float32, num_hidden_layers=1)
    path = tmp_path / {"aoti": "model.pt2", "onnx": "model.onnx", "executorch": "model.pte"}[form]
    ids = torch.arange(24).reshape(2, 12)
    program = fe.retarget(fe.export(spec, kwargs={"input_ids": ids}, target="H100"), {"cuda:0": "cpu"})
    with torch.no_grad():
        expected = AutoModelForCausalLM.from_pretrained(tmp_path)(ids, use_cache=False).logits

    fe.compile(program, path, tmp_path, to=form)
    found = open_artifact(path, form, trust=True)({"input_ids": ids})

    torch.testing.assert_close(found["logits"], expected, atol=2e-6, rtol=0)


@pytest.mark.slow
def test_an_archive_runs_without_transformers(
    program: ExportedProgram, dequantized: Any, folder: Path, tmp_path: Path
) -> None:
    with torch.no_grad():
        expected = dequantized(PROMPTS, use_cache=False).logits
    logits = logits_without_transformers(folder, tmp_path / "out.pt")
    # Some processors add in another order where a matrix is a constant, and bfloat16 shows it.
    torch.testing.assert_close(logits, expected, rtol=0, atol=2e-3)
