"""A config with `quant_method: fp8` becomes the model that transformers builds for a GPU with fp8."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import nn
from transformers import AutoModelForCausalLM, FineGrainedFP8Config
from transformers.integrations import finegrained_fp8

import fakexport as fe
from fakexport._torch.kernels import fp8_products
from fakexport.archive.weights.recipe import by_recipes
from fakexport.exporting.program import facts_of
from fakexport.models.sources import resolve
from tests.subclasses import calls

pytest.importorskip("accelerate")  # transformers loads no fp8 model without it
BLOCK = 64
SETTINGS = {"quant_method": "fp8", "activation_scheme": "dynamic", "weight_block_size": [BLOCK, BLOCK]}
DENSE: dict[str, Any] = {
    "model_type": "llama",
    "architectures": ["LlamaForCausalLM"],
    "hidden_size": 128,
    "intermediate_size": 192,
    "num_hidden_layers": 1,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 64,
    "dtype": "bfloat16",
}
EXPERTS: dict[str, Any] = {
    **DENSE,
    "model_type": "deepseek_v3",
    "architectures": ["DeepseekV3ForCausalLM"],
    "num_hidden_layers": 2,
    "num_key_value_heads": 4,
    "moe_intermediate_size": 64,
    "n_routed_experts": 4,
    "num_experts_per_tok": 2,
    "n_group": 2,
    "topk_group": 1,
    "first_k_dense_replace": 1,
    "kv_lora_rank": 64,
    "q_lora_rank": 64,
    "qk_rope_head_dim": 64,
    "qk_nope_head_dim": 16,
    "v_head_dim": 32,
}
IDS = torch.arange(24).reshape(2, 12) % 64


def folder(path: Path, config: dict[str, Any], **settings: Any) -> str:
    (path / "config.json").write_text(json.dumps({**config, "quantization_config": {**SETTINGS, **settings}}))
    return f"hf:{path}"


@contextmanager
def kernels() -> Iterator[None]:
    """Let fp8 layers of transformers compute on a CPU, as their kernel would on a GPU."""
    fp8_products.register_fp8_products()
    before = finegrained_fp8._FINEGRAINED_FP8
    finegrained_fp8._FINEGRAINED_FP8 = finegrained_fp8.FineGrainedFP8(
        matmul=fp8_products.matmul,
        batched_matmul=fp8_products.batched_matmul,
        grouped_matmul=fp8_products.grouped_matmul,
    )
    try:
        yield
    finally:
        finegrained_fp8._FINEGRAINED_FP8 = before


def quantized(path: Path) -> nn.Module:
    """The model of a folder with real weights in fp8, made with the parts of transformers; its checkpoint in
    the folder.
    """
    source = resolve(f"hf:{path}")
    torch.manual_seed(0)
    torch.set_default_dtype(torch.bfloat16)
    try:
        model: Any = source.factory()  # on a CPU transformers leaves it unquantized
    finally:
        torch.set_default_dtype(torch.float32)
    assert source.quantization is not None
    assert source.quantization.left_out(model)
    settings = FineGrainedFP8Config(weight_block_size=(BLOCK, BLOCK))
    weights = {name: tensor.detach().clone() for name, tensor in model.state_dict().items()}

    class Quantizer:
        quantization_config = settings

    operation = finegrained_fp8.Fp8Quantize(Quantizer())
    finegrained_fp8.replace_with_fp8_linear(
        model, modules_to_not_convert=["lm_head"], quantization_config=settings, pre_quantized=True
    )
    for name in list(weights):
        if f"{name}_scale_inv" in model.state_dict():
            weights.update(operation.convert({name: weights[name]}))
    model.load_state_dict(weights, assign=True)
    save_file({name: tensor.contiguous() for name, tensor in weights.items()}, path / "model.safetensors")
    return model.eval()


def published(state: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """The entries with each expert apart, as DeepSeek has them."""
    found = {}
    for name, value in state.items():
        match = re.fullmatch(r"(.*\.experts)\.(gate_up_proj|down_proj)(_scale_inv|)", name)
        if match is None:
            found[name] = value
            continue
        prefix, projection, suffix = match.groups()
        for expert, matrix in enumerate(value):
            parts = {"down_proj": matrix}
            if projection == "gate_up_proj":
                parts = dict(zip(("gate_proj", "up_proj"), matrix.chunk(2), strict=True))
            for part, rows in parts.items():
                found[f"{prefix}.{expert}.{part}.weight{suffix}"] = rows.clone()
    return found


def counted_in_float32(program: torch.export.ExportedProgram) -> torch.export.ExportedProgram:
    """The program with the tokens of each expert counted as transformers does on a CPU, where torch has no
    histogram of integers.
    """
    graph = program.graph
    for node in graph.find_nodes(op="call_function", target=torch.ops.aten.histc.default):
        with graph.inserting_before(node):
            tokens = graph.call_function(
                torch.ops.aten._to_copy.default, node.args[:1], {"dtype": torch.float32}
            )
        tokens.meta["val"] = node.args[0].meta["val"].to(torch.float32)
        node.update_arg(0, tokens)
    program.graph_module.recompile()
    return program


def test_it_computes_what_the_model_with_weights_in_fp8_does(tmp_path: Path) -> None:
    spec = folder(tmp_path, DENSE)
    real = quantized(tmp_path)
    with kernels(), torch.no_grad():
        eager = real(input_ids=IDS, use_cache=False).logits
        expected = torch.export.export(real, (), {"input_ids": IDS}).module()(input_ids=IDS)["logits"]
    dequantized = AutoModelForCausalLM.from_pretrained(tmp_path)  # what transformers makes of it on a CPU

    program = fe.export(spec, kwargs={"input_ids": IDS}, target="H100")
    fe.save(program, tmp_path / "model.pt2")
    on_a_cpu = fe.retarget(fe.load(tmp_path / "model.pt2"), {"cuda:0": "cpu"})
    found = fe.bind(on_a_cpu, tmp_path / "model.safetensors").module()(input_ids=IDS)["logits"]

    assert torch.equal(found, expected)
    assert (found - eager).norm() < 0.01 * eager.norm()  # it passes a mask where eager says `is_causal`
    # Activations are rounded to 4 significant bits in fp8, and not in bfloat16.
    unquantized = dequantized(IDS, use_cache=False).logits
    assert (found - unquantized).norm() < 0.05 * unquantized.norm()
    assert not torch.equal(found, unquantized)


def test_the_nodes_are_those_of_stock_export(tmp_path: Path) -> None:
    spec = folder(tmp_path, DENSE)
    real = quantized(tmp_path)
    inputs = resolve(spec).example_inputs(real, "cpu", None)
    with kernels():
        stock = torch.export.export(real, (), dict(inputs.kwargs), strict=False)

    program = fe.retarget(fe.export(spec, target="H100"), {"cuda:0": "cpu"})

    assert calls(program) == calls(stock)
    assert sum("w8a8_block_dynamic_fp8_matmul" in call for call in calls(program)) == 7


@pytest.mark.parametrize("config", [DENSE, EXPERTS], ids=["dense", "experts"])
def test_names_dtypes_and_bytes_are_those_of_the_checkpoint(config: dict[str, Any], tmp_path: Path) -> None:
    spec = folder(tmp_path, config)
    real = quantized(tmp_path)
    state = real.state_dict()

    report = fe.check(spec, target="H100")

    assert report.is_clean, report.diagnostics
    program, summary = report.verdicts[0].program, report.verdicts[0].summary
    assert program is not None
    assert summary is not None
    assert {n: (t.dtype, t.shape) for n, t in program.state_dict.items()} == {
        n: (t.dtype, t.shape) for n, t in state.items()
    }
    nbytes = sum(weight.numel() * weight.element_size() for weight in real.parameters())
    assert summary.parameters.bytes_per_device == {"cuda:0": nbytes}
    scales = sum(weight.numel() for name, weight in real.named_parameters() if "scale" in name)
    assert summary.parameters.elements == sum(weight.numel() for weight in real.parameters()) - scales
    assert fe.verify_weights(program, tmp_path / "model.safetensors").is_bindable
    entries = published(state)
    fe.save(program, tmp_path / "model.pt2")
    for subject in (program, fe.load(tmp_path / "model.pt2")):
        assert not fe.verify_weights(subject, entries).findings
    made: dict[str, torch.Tensor] = {}
    for conversion in by_recipes(facts_of(subject).recipes or (), entries):
        made |= conversion.convert(entries.__getitem__)
    assert made.keys() == state.keys()
    assert all(torch.equal(made[name].view(torch.uint8), state[name].view(torch.uint8)) for name in state)
    called = summary.operators
    assert ("finegrained_fp8.w8a8_block_dynamic_fp8_matmul_grouped.default" in called) == (config is EXPERTS)


def test_a_published_mixture_of_experts_computes_what_the_model_does(tmp_path: Path) -> None:
    """Each expert apart in two shards, as DeepSeek publishes them, bound to an archive."""
    spec = folder(tmp_path, EXPERTS)
    real = quantized(tmp_path)
    with kernels(), torch.no_grad():
        eager = real(input_ids=IDS, use_cache=False).logits
    (tmp_path / "published").mkdir()
    entries = published(real.state_dict())
    names = sorted(entries)
    shards = {"model-1.safetensors": names[::2], "model-2.safetensors": names[1::2]}
    for shard, inside in shards.items():
        save_file({name: entries[name].contiguous() for name in inside}, tmp_path / "published" / shard)
    index = {name: shard for shard, inside in shards.items() for name in inside}
    (tmp_path / "published" / "model.safetensors.index.json").write_text(json.dumps({"weight_map": index}))

    fe.save(fe.export(spec, kwargs={"input_ids": IDS}, target="H100"), tmp_path / "model.pt2")
    on_a_cpu = fe.retarget(counted_in_float32(fe.load(tmp_path / "model.pt2")), {"cuda:0": "cpu"})
    found = fe.bind(on_a_cpu, tmp_path / "published").module()(input_ids=IDS)["logits"]

    assert (found - eager).norm() < 0.01 * eager.norm()
    # Expert 0 is 1 and the reverse.
    exchanged = {
        re.sub(r"(?<=experts\.)[01]\.", lambda one: f"{1 - int(one[0][0])}.", name): value
        for name, value in entries.items()
    }
    assert exchanged.keys() == entries.keys()
    other = fe.bind(on_a_cpu, exchanged).module()(input_ids=IDS)["logits"]
    assert (found - eager).norm() < 0.1 * (other - eager).norm()


@pytest.mark.slow
def test_experts_in_4_bits_export_with_two_numbers_per_byte(tmp_path: Path) -> None:
    report = fe.check(folder(tmp_path, EXPERTS, expert_dtype="fp4", scale_fmt="ue8m0"), target="H100")

    assert report.is_clean, report.diagnostics
    program, summary = report.verdicts[0].program, report.verdicts[0].summary
    assert program is not None
    assert summary is not None
    weights = program.state_dict
    experts = weights["model.layers.1.mlp.experts.gate_up_proj"]
    scales = weights["model.layers.1.mlp.experts.gate_up_proj_scale_inv"]
    assert (experts.dtype, tuple(experts.shape)) == (torch.int8, (4, 128, 64))
    assert (scales.dtype, tuple(scales.shape)) == (torch.float8_e8m0fnu, (4, 128, 4))
    assert "finegrained_fp8.w4a8_mx_dynamic_fp4_matmul_grouped.default" in summary.operators


@pytest.mark.slow
def test_4_bit_weights_with_scales_in_float32_are_refused_by_name(tmp_path: Path) -> None:
    report = fe.check(folder(tmp_path, EXPERTS, expert_dtype="fp4"), target="H100")

    assert not report.verdicts[0].is_exportable
    assert any("finegrained-fp8 is not emulated" in note for d in report.diagnostics for note in d.notes)


@pytest.mark.parametrize(
    ("settings", "ignored"),
    [
        ({"quant_algo": "MIXED_PRECISION", "quantized_layers": {"layers.0": {"quant_algo": "NVFP4"}}}, True),
        ({"ignore": ["*.self_attn.*"]}, True),
        ({"fmt": "e5m2"}, True),
        (
            {"fmt": "e4m3", "kv_cache_scheme": {"num_bits": 8}, "ignored_layers": ["lm_head"], "ignore": []},
            False,
        ),
    ],
)
def test_settings_that_transformers_ignores_may_describe_other_weights(
    settings: dict[str, Any], ignored: bool, tmp_path: Path
) -> None:
    report = fe.check(folder(tmp_path, DENSE, **settings), target="H100")

    assert [diagnostic.code for diagnostic in report.diagnostics] == ["FE105"] * ignored
    assert report.is_clean != ignored
    if ignored:
        assert any(f"ignores {', '.join(settings)} in the " in note for note in report.diagnostics[0].notes)


def test_a_decode_step_is_planned_without_the_kernel_of_the_hub(tmp_path: Path) -> None:
    report = fe.plan(folder(tmp_path, DENSE), target="H100", workload="decode", batch=1, context=4096)

    (device,) = report.points[0].devices
    keys_and_values, heads, width, nbytes = 2, 2, 32, 2
    assert 0 <= device.state_after - 4096 * keys_and_values * heads * width * nbytes < 4096
