"""What a checkpoint lacks is told by name, with the likely cause."""

from __future__ import annotations

import json

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn

import fakexport as fe
from fakexport.archive.weights import CheckpointError
from fakexport.emulation.fake import fake_mode
from fakexport.exporting.capture import ModelNotBuilt
from tests.unit.archive.weights.real_models import real_model


@pytest.fixture(scope="module", params=["gpt2", "mixtral"])  # Turned weights, and merged ones.
def model(request, tmp_path_factory):
    return real_model(request.param, tmp_path_factory.mktemp(request.param))


def entries(model):
    return load_file(model.checkpoint / "model.safetensors")


def found(report):
    """Code -> (names, cause) of each finding."""
    return {finding.code: (finding.names, finding.cause_text) for finding in report.findings}


def test_a_checkpoint_in_the_hubs_layout_fits(model):
    report = fe.verify_weights(model.spec, model.checkpoint)

    assert report.findings == ()
    assert report.is_bindable
    assert report.entries == len(entries(model))
    assert report.summary == f"all {report.weights} weights fit"


def test_the_state_dict_of_the_module_fits_as_it_is(model):
    report = fe.verify_weights(model.spec, dict(model.module.state_dict()))

    assert report.is_bindable
    assert report.converted == 0


def test_each_missing_entry_is_named(model):
    complete = entries(model)
    for name in complete:
        lacking = {other: tensor for other, tensor in complete.items() if other != name}

        report = fe.verify_weights(model.module, lacking)

        assert not report.is_bindable
        # Of merged experts, the whole tensor has another shape.
        assert {finding.code for finding in report.findings} <= {"FE701", "FE702"}


@pytest.mark.parametrize(
    ("kind", "code", "target"), [("w1", "FE701", "gate_up_proj"), ("w2", "FE702", "down_proj")]
)
def test_an_expert_that_is_missing_is_seen_in_what_there_is(kind, code, target, tmp_path):
    model = real_model("mixtral", tmp_path)
    there = {name: t for name, t in entries(model).items() if f".experts.3.{kind}." not in name}

    (finding,) = fe.verify_weights(model.module, there).findings

    assert (finding.code, finding.names) == (
        code,
        tuple(f"model.layers.{layer}.mlp.experts.{target}" for layer in range(2)),
    )
    assert f"model.layers.{{0,1}}.block_sparse_moe.experts.{{0..2}}.{kind}.weight" in finding.cause_text


def test_a_prefix_is_told(model):
    prefixed = {f"_orig_mod.{name}": tensor for name, tensor in model.module.state_dict().items()}

    report = fe.verify_weights(model.module, prefixed)

    cause = "the names in the checkpoint have the prefix `_orig_mod.`"
    assert found(report)["FE701"][1] == cause
    assert found(report)["FE704"][1] == cause
    assert len(report.findings) == 2


def test_another_dtype_is_one_finding(model):
    halves = {name: tensor.bfloat16() for name, tensor in entries(model).items()}

    (finding,) = fe.verify_weights(model.module, halves).findings

    assert (finding.code, finding.expected, finding.found) == ("FE703", "float32", "bfloat16")
    assert finding.cause_text == "the whole checkpoint is bfloat16"
    assert fe.verify_weights(model.spec, halves, dtype=torch.bfloat16).is_bindable


def test_wrong_shapes_are_told_with_their_cause(tmp_path):
    model = real_model("llama", tmp_path)
    weights = dict(model.module.state_dict())
    changes = {
        "model.layers.1.mlp.up_proj.weight": ((32, 48), "it is transposed"),
        "model.embed_tokens.weight": ((70, 32), "the vocabulary size or the number of classes differs"),
        "model.layers.0.mlp.gate_proj.weight": (
            (24, 32),
            "it may be one of 2 tensor-parallel shards along dimension 0",
        ),
        "model.norm.weight": ((33,), "the configuration may belong to a model of a different size"),
        "model.layers.0.self_attn.q_proj.weight": (
            (4, 8, 32),
            "it has the same number of elements in a different layout",
        ),
    }
    weights |= {name: torch.zeros(shape) for name, (shape, _) in changes.items()}

    report = fe.verify_weights(model.module, weights)

    assert {f.names[0]: f.cause_text for f in report.findings} == {
        n: cause for n, (_, cause) in changes.items()
    }
    assert {f.code for f in report.findings} == {"FE702"}


QKV = [f"model.layers.{{}}.self_attn.{kind}_proj.weight" for kind in "qkv"]


def test_merged_projections_are_told_layer_by_layer_on_one_line(tmp_path):
    model = real_model("llama", tmp_path)
    weights = dict(model.module.state_dict())
    for layer in range(2):
        parts = [weights.pop(name.format(layer)) for name in QKV]
        weights[f"model.layers.{layer}.self_attn.qkv_proj.weight"] = torch.cat(parts)

    report = fe.verify_weights(model.module, weights)

    missing, extra = report.findings
    assert missing.names == tuple(name.format(layer) for layer in range(2) for name in QKV)
    assert missing.cause_text == (
        "it is merged into model.layers.{0,1}.self_attn.qkv_proj.weight in the checkpoint"
    )
    assert extra.cause_text == "it merges " + ", ".join(name.format("{0,1}") for name in QKV)


def test_split_projections_are_told(tmp_path):
    model = real_model("gpt2", tmp_path)
    weights = dict(model.module.state_dict())
    whole = weights.pop("transformer.h.0.attn.c_attn.weight")
    for kind, part in zip("qkv", whole.chunk(3, dim=1), strict=True):
        weights[f"transformer.h.0.attn.{kind}_attn.weight"] = part

    report = fe.verify_weights(model.module, weights)

    parts = ", ".join(f"transformer.h.0.attn.{kind}_attn.weight" for kind in "qkv")
    assert found(report)["FE701"][1] == f"it is split into {parts} in the checkpoint"
    assert found(report)["FE704"][1] == "it is part of transformer.h.0.attn.c_attn.weight in the model"


def test_the_projection_of_multihead_attention_is_told():
    attention = nn.MultiheadAttention(8, 2)
    weights = dict(attention.state_dict())
    merged = weights.pop("in_proj_weight")
    weights |= {f"{kind}_proj_weight": part for kind, part in zip("qkv", merged.chunk(3), strict=True)}

    report = fe.verify_weights(attention, weights)

    assert "it is split into q_proj_weight, k_proj_weight, v_proj_weight" in found(report)["FE701"][1]


def test_experts_that_are_separate_for_a_plain_module_are_told():
    class Experts(nn.Module):
        def __init__(self):
            super().__init__()
            self.experts = nn.Module()
            self.experts.gate_up_proj = nn.Parameter(torch.zeros(4, 6, 2))

    separate = {f"experts.{i}.w1.weight": torch.zeros(3, 2) for i in range(4)}

    report = fe.verify_weights(Experts(), separate)

    assert found(report) == {
        "FE701": (
            ("experts.gate_up_proj",),
            "the experts are separate tensors in the checkpoint and merged in the model",
        ),
        "FE704": (
            tuple(separate),
            "the experts are separate tensors in the checkpoint and merged in the model",
        ),
    }


def test_a_quantized_checkpoint_is_told():
    weights = {**nn.Linear(4, 2).state_dict(), "weight_scale_inv": torch.ones(1, 1)}

    (finding,) = fe.verify_weights(nn.Linear(4, 2), weights).findings

    assert finding.code == "FE704"
    assert (
        finding.cause_text
        == "the checkpoint is quantized but the model is not: dequantize the checkpoint first"
    )


def test_a_buffer_that_needs_no_entry_is_only_a_note():
    class Rotary(nn.Linear):
        def __init__(self):
            super().__init__(2, 2)
            self.register_buffer("inv_freq", torch.ones(2), persistent=False)

    report = fe.verify_weights(Rotary, {**Rotary().state_dict(), "inv_freq": torch.ones(2)})

    assert [diagnostic.severity for diagnostic in report.diagnostics] == ["note"]
    assert report.is_bindable


def test_one_name_of_a_tied_weight_is_enough_and_either_will_do(tmp_path):
    model = real_model("gpt2", tmp_path)
    complete = dict(model.module.state_dict())

    for name in ("lm_head.weight", "transformer.wte.weight"):
        weights = {other: tensor for other, tensor in complete.items() if other != name}
        assert fe.verify_weights(model.module, weights).findings == ()


def test_a_tied_weight_with_two_entries_may_differ(tmp_path):
    model = real_model("gpt2", tmp_path)
    tied = dict(model.module.state_dict())
    untied = {**tied, "lm_head.weight": tied["lm_head.weight"].clone()}

    (finding,) = fe.verify_weights(model.module, untied).findings

    assert (finding.code, finding.names) == ("FE705", ("transformer.wte.weight", "lm_head.weight"))
    assert fe.verify_weights(model.module, tied).findings == ()  # one memory: it cannot differ
    assert fe.verify_weights(model.module, untied).is_bindable


def test_a_tie_that_is_missing_is_one_weight(tmp_path):
    model = real_model("gpt2", tmp_path)
    tied = ("lm_head.weight", "transformer.wte.weight")
    weights = {name: tensor for name, tensor in model.module.state_dict().items() if name not in tied}

    report = fe.verify_weights(model.module, weights)

    assert found(report)["FE701"][0] == ("transformer.wte.weight",)


def test_126_layers_are_one_line(tmp_path):
    layers = nn.Sequential(*[nn.Linear(2, 2) for _ in range(126)])

    (diagnostic,) = fe.verify_weights(layers, {}).diagnostics

    assert diagnostic.notes == ("{0..125}.weight\n{0..125}.bias",)
    assert diagnostic.count == 252


def test_a_model_of_any_size_is_verified_from_headers_alone(tmp_path):
    """Half a terabyte, as the file system sees it; none of it is written or read."""
    with fake_mode():
        huge = nn.Sequential(*[nn.Linear(2**16, 2**14, bias=False) for _ in range(128)])
    shard = tmp_path / "model.safetensors"
    size = 2**32
    fields = {
        f"{i}.weight": {"dtype": "F32", "shape": [2**14, 2**16], "data_offsets": [i * size, (i + 1) * size]}
        for i in range(128)
    }
    header = json.dumps(fields).encode()
    with shard.open("wb") as file:
        file.write(len(header).to_bytes(8, "little") + header)
        file.truncate(8 + len(header) + 128 * size)

    report = fe.verify_weights(huge, shard)

    assert report.findings == ()
    assert report.entry_bytes == 128 * size


def test_a_module_on_devices_that_are_not_here_is_verified():
    def factory():
        return nn.Linear(4, 2, device="cuda:1")

    assert fe.verify_weights(factory, dict(nn.Linear(4, 2).state_dict()), target="8xH100").is_bindable


def test_bad_calls_are_one_line(tmp_path):
    def broken():
        raise RuntimeError("no such\nlayer")

    save_file({"a": torch.zeros(1)}, tmp_path / "model.safetensors")

    with pytest.raises(
        ModelNotBuilt, match="broken cannot be built: RuntimeError: no such; run `fakexport check"
    ):
        fe.verify_weights(broken, tmp_path)
    with pytest.raises(CheckpointError, match="No such file"):
        fe.verify_weights(nn.Linear(1, 1), tmp_path / "nothing.safetensors")
    with pytest.raises(ValueError, match="nothing"):
        fe.verify_weights("nothing", tmp_path)
