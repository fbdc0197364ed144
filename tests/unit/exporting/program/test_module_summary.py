"""The tree of modules that `inspect` shows."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from transformers import GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM

from fakexport.emulation.devices import emulate
from fakexport.exporting.program import ModuleSummary, inspect_module
from tests.unit.exporting.program.small_models import Block, Blocks, ManyKinds


def entries(summary: ModuleSummary) -> Iterator[ModuleSummary]:
    yield summary
    for child in summary.children:
        yield from entries(child)


def child(summary: ModuleSummary, *names: str) -> ModuleSummary:
    for name in names:
        summary = next(entry for entry in summary.children if entry.name == name)
    return summary


def test_equal_layers_fold_to_one_entry(llama_model: LlamaForCausalLM) -> None:
    layers = child(inspect_module(llama_model), "model", "layers")

    (layer,) = layers.children
    first = llama_model.model.layers[0]
    assert (layer.name, layer.path, layer.count) == ("0-2", "model.layers.0", 3)
    assert layer.class_name == "LlamaDecoderLayer"
    assert layer.total_parameters == sum(parameter.numel() for parameter in first.parameters())
    assert layers.total_parameters == 3 * layer.total_parameters


def test_totals_are_those_of_the_model_with_tied_weights_once(gpt2_model: GPT2LMHeadModel) -> None:
    summary = inspect_module(gpt2_model)

    parameters, buffers = list(gpt2_model.parameters()), list(gpt2_model.buffers())
    assert summary.total_parameters == sum(parameter.numel() for parameter in parameters)
    assert summary.total_buffers == sum(buffer.numel() for buffer in buffers)
    assert summary.total_bytes == sum(tensor.nbytes for tensor in (*parameters, *buffers))
    assert child(summary, "lm_head").tied_to == ("transformer.wte.weight",)
    assert child(summary, "lm_head").own_parameters == 0


def test_every_total_is_the_sum_of_what_is_below(gpt2_model: GPT2LMHeadModel) -> None:
    for entry in entries(inspect_module(gpt2_model)):
        below = [(part.total_parameters, part.total_bytes, part.count) for part in entry.children]

        assert entry.total_parameters == entry.own_parameters + sum(n * count for n, _, count in below)
        assert entry.total_bytes == entry.own_bytes + sum(n * count for _, n, count in below)
        assert sum(entry.bytes_per_device.values()) == entry.total_bytes * entry.count


def test_projections_with_names_do_not_fold(llama_model: LlamaForCausalLM) -> None:
    attention = child(inspect_module(llama_model), "model", "layers", "0-2", "self_attn")

    assert [entry.name for entry in attention.children] == ["q_proj", "k_proj", "v_proj", "o_proj"]
    assert {entry.count for entry in attention.children} == {1}


def test_a_layer_of_another_shape_ends_the_run() -> None:
    model = nn.Sequential(*(nn.Linear(4, size) for size in (4, 4, 5)), nn.ReLU(), nn.Linear(4, 4))

    runs = [(entry.name, entry.count) for entry in inspect_module(model).children]

    assert runs == [("0-1", 2), ("2", 1), ("3", 1), ("4", 1)]


def test_a_difference_deep_inside_ends_the_run() -> None:
    model = Blocks()
    model.layers[2].proj = nn.Linear(8, 8, bias=False)

    runs = [entry.name for entry in child(inspect_module(model), "layers").children]

    assert runs == ["0-1", "2", "3"]


def test_layers_on_different_devices_fold_and_tell_their_devices() -> None:
    with emulate("2xH100"), FakeTensorMode():
        model = nn.ModuleList(nn.Linear(8, 8, device=f"cuda:{number // 2}") for number in range(4))

    (run,) = inspect_module(model).children

    assert (run.name, run.count, run.devices) == ("0-3", 4, ("cuda:0", "cuda:1"))
    assert run.bytes_per_device == {"cuda:0": 2 * 72 * 4, "cuda:1": 2 * 72 * 4}


def test_a_layer_whose_weight_another_layer_owns_stands_apart() -> None:
    model = nn.ModuleList(Block() for _ in range(4))
    for block in model[1:]:
        block.proj.weight = model[0].proj.weight

    owner, sharers = inspect_module(model).children

    assert (owner.name, owner.total_parameters) == ("0", 72)
    assert (sharers.name, sharers.total_parameters) == ("1-3", 8)
    assert sharers.children[0].tied_to == ("0.proj.weight",)


def test_dtypes_and_buffers_are_told() -> None:
    model = nn.Sequential(ManyKinds(), nn.Linear(2, 2, dtype=torch.bfloat16))

    summary = inspect_module(model)

    assert summary.dtypes == ("bfloat16", "float32")
    assert (child(summary, "0").own_buffers, child(summary, "0").own_bytes) == (8, 32)


def test_meta_and_lazy_modules_have_no_data_to_read() -> None:
    model = nn.Sequential(nn.Linear(4, 4, device="meta"), nn.LazyLinear(4))

    summary = inspect_module(model)

    assert summary.total_parameters == 20
    assert child(summary, "0").devices == ("meta",)


def test_the_blocks_of_a_large_model_are_one_entry() -> None:
    config = LlamaConfig(
        hidden_size=16384,
        intermediate_size=53248,
        num_hidden_layers=126,
        num_attention_heads=128,
        num_key_value_heads=8,
        vocab_size=128256,
    )
    with torch.device("meta"):
        model = LlamaForCausalLM(config)

    summary = inspect_module(model)

    assert summary.total_parameters == 405_853_388_800
    assert child(summary, "model", "layers").children[0].name == "0-125"
