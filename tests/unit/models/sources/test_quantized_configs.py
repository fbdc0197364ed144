"""A config with a `quantization_config` becomes the model that transformers loads from its checkpoint."""

from __future__ import annotations

import importlib.util
import json
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import nn
from transformers import AutoModelForCausalLM
from transformers.quantizers import HfQuantizer, auto
from transformers.utils.quantization_config import QuantizationConfigMixin

import fakexport as fe
from fakexport.models.sources import resolve
from tests.subclasses import calls

LLAMA: dict[str, Any] = {
    "model_type": "llama",
    "architectures": ["LlamaForCausalLM"],
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 1,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 64,
    "dtype": "bfloat16",
}
BITNET = {"quant_method": "bitnet", "modules_to_not_convert": ["lm_head"]}
INT8 = {
    "quant_method": "torchao",
    "quant_type": {"default": {"_type": "Int8WeightOnlyConfig", "_version": 2, "_data": {}}},
    "modules_to_not_convert": ["lm_head"],
}
IDS = torch.arange(24).reshape(2, 12) % 64


def folder(path: Path, settings: dict[str, Any], config: dict[str, Any] = LLAMA) -> str:
    (path / "config.json").write_text(json.dumps({**config, "quantization_config": settings}))
    return f"hf:{path}"


def drawn(state: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Real weights like fake ones."""
    generator = torch.Generator().manual_seed(0)
    return {
        name: torch.randint(0, 255, fake.shape, generator=generator, dtype=fake.dtype)
        if fake.dtype is torch.uint8
        else (torch.rand(fake.shape, generator=generator) / 4).to(fake.dtype)
        for name, fake in state.items()
    }


def unquantized(spec: str) -> nn.Module:
    """The real model before it is quantized."""
    path = Path(spec.removeprefix("hf:"))
    plain = path / "plain"
    plain.mkdir()
    (plain / "config.json").write_text(json.dumps(LLAMA))
    torch.manual_seed(0)
    torch.set_default_dtype(torch.bfloat16)
    try:
        built: nn.Module = resolve(f"hf:{plain}").factory()
    finally:
        torch.set_default_dtype(torch.float32)
    return built


@pytest.mark.slow
def test_bitnet_is_what_transformers_loads(tmp_path: Path) -> None:
    spec = folder(tmp_path, BITNET)
    program = fe.export(spec)
    save_file(drawn(program.state_dict), tmp_path / "model.safetensors", metadata={"format": "pt"})
    real = AutoModelForCausalLM.from_pretrained(tmp_path)
    real.config.use_cache = False
    inputs = dict(resolve(spec).example_inputs(real, "cpu", None).kwargs)

    bound = fe.bind(program, tmp_path / "model.safetensors")

    with torch.compiler.set_stance("force_eager"):  # A function of the layers is compiled, for half a minute.
        assert calls(program) == calls(torch.export.export(real, (), inputs, strict=False))
        expected = real(**inputs).logits
    assert {n: (t.dtype, t.shape) for n, t in program.state_dict.items()} == {
        n: (t.dtype, t.shape) for n, t in real.state_dict().items()
    }
    assert sum(t.dtype is torch.uint8 for t in program.state_dict.values()) == 7
    assert torch.equal(bound.module()(**inputs)["logits"], expected)
    (verdict,) = fe.check(spec, target="H100").verdicts
    assert verdict.summary is not None
    tensors = (*real.parameters(), *real.buffers())
    nbytes = sum(tensor.numel() * tensor.element_size() for tensor in tensors)
    held = verdict.summary.parameters, verdict.summary.buffers
    assert sum(part.bytes_per_device["cuda:0"] for part in held) == nbytes


def test_torchao_in_a_config_is_what_torchao_makes_of_the_model(tmp_path: Path) -> None:
    quantization = pytest.importorskip("torchao.quantization")
    spec = folder(tmp_path, INT8)
    real: Any = unquantized(spec)
    quantization.quantize_(
        real,
        quantization.Int8WeightOnlyConfig(),
        lambda module, name: isinstance(module, nn.Linear) and name != "lm_head",
    )
    inputs = dict(resolve(spec).example_inputs(real, "cpu", None).kwargs)

    program = fe.export(spec)
    bound = fe.bind(program, real.state_dict())

    assert calls(program) == calls(torch.export.export(real, (), inputs, strict=False))
    assert sum(tensor.dtype is torch.int8 for tensor in program.state_dict.values()) >= 7
    assert torch.equal(bound.module()(**inputs)["logits"], real(**inputs).logits)


COMPRESSED = {
    "quant_method": "compressed-tensors",
    "quantization_status": "compressed",
    "format": "float-quantized",
    "ignore": ["lm_head"],
    "config_groups": {
        "group_0": {
            "targets": ["Linear"],
            "weights": {"num_bits": 8, "type": "float", "strategy": "channel", "symmetric": True},
            "input_activations": {
                "num_bits": 8,
                "type": "float",
                "strategy": "token",
                "symmetric": True,
                "dynamic": True,
            },
        }
    },
}


def test_compressed_tensors_keeps_fp8_where_it_is_asked_to(tmp_path: Path) -> None:
    pytest.importorskip("compressed_tensors")
    layers = pytest.importorskip("transformers.integrations.compressed_tensors")
    spec = folder(tmp_path, {**COMPRESSED, "use_optimized_inference": True})
    real: Any = unquantized(spec)
    state = real.state_dict()
    with torch.device("meta"):
        replaced = layers.replace_with_compressed_tensors_fp8_linear(real, ["Linear"], ["lm_head"])
    for name in replaced:
        packed, scale = layers.quantize_fp8_per_row(state[f"{name}.weight"])
        state |= {f"{name}.weight": packed, f"{name}.weight_scale": scale.reshape(1, -1)}
    real.load_state_dict(state, assign=True)
    inputs = dict(resolve(spec).example_inputs(real, "cpu", None).kwargs)

    program = fe.retarget(fe.export(spec, target="H100"), {"cuda:0": "cpu"})
    bound = fe.bind(program, real.state_dict())

    assert calls(program) == calls(torch.export.export(real, (), inputs, strict=False))
    assert torch.equal(bound.module()(**inputs)["logits"], real(**inputs).logits)


def test_compressed_tensors_that_are_unpacked_in_the_first_call_are_not_quantized(tmp_path: Path) -> None:
    pytest.importorskip("compressed_tensors")

    (found,) = fe.check(folder(tmp_path, COMPRESSED), target="H100").diagnostics

    assert found.code == "FE105"
    assert "use_optimized_inference" in "".join(found.notes)


def test_a_quantizer_that_packs_nothing_is_not_believed(tmp_path: Path) -> None:
    """Those of quanto and others replace layers, and pack weights only while they read a checkpoint."""

    class Config(QuantizationConfigMixin):
        def __init__(self, quant_method: str = "packs-nothing") -> None:
            self.quant_method = quant_method  # type: ignore[assignment]

    class Quantizer(HfQuantizer):
        is_trainable = False

        def is_serializable(self) -> bool:
            return True

    known = auto.AUTO_QUANTIZATION_CONFIG_MAPPING, auto.AUTO_QUANTIZER_MAPPING
    auto.register_quantization_config("packs-nothing")(Config)
    auto.register_quantizer("packs-nothing")(Quantizer)
    try:
        (found,) = fe.check(folder(tmp_path, {"quant_method": "packs-nothing"})).diagnostics
    finally:
        for mapping in known:
            del mapping["packs-nothing"]

    assert found.code == "FE105"
    assert "packs weights only while it reads a checkpoint" in "".join(found.notes)


FP8 = {"quant_method": "fp8", "activation_scheme": "dynamic", "weight_block_size": [32, 32]}
MXFP4 = {"quant_method": "mxfp4", "modules_to_not_convert": ["lm_head"]}
FBGEMM = {"quant_method": "fbgemm_fp8", "activation_scale_ub": 1.0, "modules_to_not_convert": ["lm_head"]}
GPT_OSS: dict[str, Any] = {
    **LLAMA,
    "model_type": "gpt_oss",
    "architectures": ["GptOssForCausalLM"],
    "head_dim": 16,
    "num_local_experts": 4,
    "num_experts_per_tok": 2,
    "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0},
}


@pytest.mark.parametrize(
    ("settings", "config", "target", "says"),
    [
        (FP8, LLAMA, "cpu", "requires a GPU or XPU"),
        (FP8, LLAMA, "A100", "compute capability >= 8.9"),
        (MXFP4, GPT_OSS, "cpu", "MXFP4 inference on CPU"),
        (MXFP4, GPT_OSS, "V100", "compute capability >= 7.5"),
        (MXFP4, {**GPT_OSS, "hidden_size": 48}, "H100", "a multiple of 32, but gate_up_proj has 48"),
        (MXFP4, LLAMA, "H100", "only applies to experts of gpt-oss"),
        (FBGEMM, LLAMA, "cpu", "requires a GPU or XPU"),
        (FBGEMM, LLAMA, "A100", "compute capability >= 9.0"),
        (FBGEMM, LLAMA, "MI300X", "float8_e4m3fnuz on AMD GPUs"),
        ({"quant_method": "unheard-of"}, LLAMA, "H100", "has no quantization method 'unheard-of'"),
    ],
)
def test_where_a_model_is_not_quantized_the_report_says_why(
    settings: dict[str, Any], config: dict[str, Any], target: str, says: str, tmp_path: Path
) -> None:
    report = fe.check(folder(tmp_path, settings, config), target=target)

    (found,) = report.diagnostics
    assert found.code == "FE105"
    assert any(says in note for note in found.notes), found.notes
    assert report.verdicts[0].is_exportable
    assert not report.is_clean


def test_each_name_of_an_unquantized_module_is_compiled_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The fp8 configs of GLM-5 have more names than Python keeps compiled."""
    compiled: list[str] = []

    def noted(pattern: Any, flags: int = 0) -> Any:
        compiled.append(str(pattern))
        return compile_pattern(pattern, flags)

    absent = [f"absent.{index}" for index in range(600)]
    compile_pattern = vars(re)["_compiler"].compile
    monkeypatch.setattr(vars(re)["_compiler"], "compile", noted)
    left_out = {**FP8, "modules_to_not_convert": [*absent, "lm_head", "model.layers.0.mlp.up_proj"]}

    program = fe.export(folder(tmp_path, left_out), target="H100")

    assert sum("absent." in pattern for pattern in compiled) == 600
    quantized = {name for name, t in program.state_dict.items() if t.dtype is torch.float8_e4m3fn}
    assert len(quantized) == 6
    assert "model.layers.0.mlp.down_proj.weight" in quantized
    assert "model.layers.0.mlp.up_proj.weight" not in quantized


def test_a_transformers_without_these_names_still_quantizes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delattr("transformers.quantizers.quantizers_utils.should_convert_module")

    program = fe.export(folder(tmp_path, FP8), target="H100")

    assert torch.float8_e4m3fn in {tensor.dtype for tensor in program.state_dict.values()}


@pytest.mark.slow
@pytest.mark.parametrize(("settings", "config"), [(FP8, LLAMA), (MXFP4, GPT_OSS), (FBGEMM, LLAMA)])
def test_quantized_layers_on_a_cpu_do_not_export(settings: Any, config: Any, tmp_path: Path) -> None:
    """The kernels are written for GPUs: an export with the layers there could not run."""
    report = fe.check(folder(tmp_path, settings, config), target="cpu+H100", device_map="cpu")

    assert not report.verdicts[0].is_exportable
    assert any("run only on a GPU" in note for found in report.diagnostics for note in found.notes)


MISSING = {
    "gptq": ({"bits": 4}, "optimum", "requires optimum"),
    "awq": ({"bits": 4}, "gptqmodel", "requires gptqmodel"),
    "bitsandbytes": ({"load_in_4bit": True}, "bitsandbytes", "requires bitsandbytes"),
}


@pytest.mark.slow
@pytest.mark.parametrize("method", MISSING)
def test_why_a_model_is_not_quantized_is_said(method: str, tmp_path: Path) -> None:
    more, package, says = MISSING[method]
    if importlib.util.find_spec(package) is not None:
        pytest.skip(f"{package} is installed: the message is of an environment without it")
    settings = {"quant_method": method, **more}
    with pytest.warns(fe.PartialExportWarning, match="FE105"):
        program = fe.export(folder(tmp_path, settings), target="H100")
    report = fe.check(f"hf:{tmp_path}", target="H100")

    assert {tensor.dtype for tensor in program.state_dict.values()} == {torch.bfloat16}
    (found,) = report.diagnostics
    assert found.code == "FE105"
    assert says in "".join(found.notes)
    assert not report.is_clean
