"""A model that cannot be sharded is one line, before anything is traced."""

import pytest
import torch
from torch import nn

import fakexport as fe
from tests.parallel_models import factory_of

pytest.importorskip("transformers")


def refusal(source, parallel="tp=2", **options):
    with pytest.raises(ValueError, match=r".") as caught:
        fe.export(source, parallel=parallel, **options)
    text = str(caught.value)
    assert "\n" not in text
    return text


def without_a_plan():
    from transformers import GPT2Config, GPT2LMHeadModel

    tiny = GPT2Config(n_layer=1, n_embd=8, n_head=2, vocab_size=10)
    return GPT2LMHeadModel(tiny), (torch.zeros(1, 2).long(),)


def of_torch():
    return nn.Linear(4, 4), (torch.zeros(2, 4),)


LLAMA = factory_of("llama")
REFUSALS = [
    (LLAMA, "tp=3", {}, "tp=3 does not divide the 8 heads of model.layers.0.self_attn.q_proj"),
    (LLAMA, "tp=8", {}, "tp=8 does not divide the 4 heads of model.layers.0.self_attn.k_proj"),
    (
        *(factory_of("llama", intermediate_size=5), "tp=4", {}),
        "its dimension of size 5 leaves some of 4 ranks without a shard",
    ),
    (
        *(factory_of("mixtral", num_local_experts=3), "tp=2,ep=2", {}),
        "ep=2 does not divide the 3 experts of model.layers.0.mlp.experts",
    ),
    (without_a_plan, "tp=2", {}, "has no tensor parallel plan"),
    (LLAMA, "tp=2,ep=2", {}, "has no expert parallel plan"),
    (of_torch, "tp=2", {}, "has no tensor-parallel plan of its own"),
    (nn.Linear(4, 4), "tp=2", {"args": (torch.zeros(2, 4),)}, "requires an hf: model"),
    (LLAMA, "tp=4", {"target": "2xH100"}, "requires 4 devices, and 2xH100-80GB has 2"),
    (LLAMA, "tp=2", {"rank": 2}, "has ranks 0 to 1; got 2"),
    *((LLAMA, None, {"rank": rank}, "a rank requires --parallel") for rank in (0, 2, "all")),
    (LLAMA, "tp=2", {"strict": True}, "cannot be combined with --strict"),
    (LLAMA, "tp=2", {"device_map": "cpu"}, "remove --device-map"),
    ("hf:llama", "tp=2", {"workload": "decode"}, "supports --workload forward"),
]


@pytest.mark.parametrize(("source", "parallel", "options", "fragment"), REFUSALS)
def test_what_cannot_be_sharded_is_refused(source, parallel, options, fragment):
    assert fragment in refusal(source, parallel, **options)


def test_weights_tied_to_one_that_is_sharded_differently():
    def untied_plan():
        model, inputs = factory_of("llama")()
        del model._tp_plan["lm_head"]
        return model, inputs

    assert "lm_head.weight is tied to model.embed_tokens.weight" in refusal(untied_plan)


def test_a_style_that_is_not_known():
    def other_style():
        model, inputs = factory_of("llama", tie_word_embeddings=False)()
        model._tp_plan["model.norm"] = "sequence_parallel"
        return model, inputs

    assert "cannot trace the style 'sequence_parallel' of model.norm" in refusal(other_style)


def reading_a_weight_outside():
    model, inputs = factory_of("llama", num_hidden_layers=1)()
    mlp = model.model.layers[0].mlp
    mlp.forward = lambda x: mlp.down_proj(nn.functional.linear(x, mlp.up_proj.weight))
    return model, inputs


def test_a_weight_that_is_read_outside_of_its_module():
    assert "up_proj.weight is sharded, but model.layers.0.mlp reads the tensor directly" in refusal(
        reading_a_weight_outside
    )


def with_mlp(forward):
    def small():
        model, inputs = factory_of("llama", num_hidden_layers=1)()
        mlp = model.model.layers[0].mlp
        mlp.forward = lambda x: mlp.down_proj(forward(mlp.up_proj(x)))
        return model, inputs

    return small


@pytest.mark.parametrize(
    ("reshape", "sizes"),
    [
        (lambda x: x.view(*x.shape[:-1], 8, -1).softmax(-1).flatten(-2), "(2, 8, 8, 6)"),
        (lambda x: x.unflatten(-1, (8, -1)).softmax(-1).flatten(-2), "(2, 8, 8, 6)"),
        (lambda x: x.view(x.shape[0], -1, 8, 12).softmax(-1).reshape(x.shape), "(2, 4, 8, 12)"),
    ],
    ids=["view", "unflatten", "tokens"],
)
def test_a_reshape_by_the_heads_of_the_whole_model(reshape, sizes):
    """No shape is wrong, and the result would be."""
    assert f"model.layers.0.mlp reshapes sharded features to {sizes}" in refusal(
        with_mlp(reshape), args=(torch.zeros(2, 8, dtype=torch.long),)
    )


def test_a_reshape_by_the_size_of_a_head():
    program = fe.export(
        with_mlp(lambda x: x.view(*x.shape[:-1], -1, 12).softmax(-1).flatten(-2)), parallel="tp=2"
    )

    assert len(program.graph.nodes) > 0


def test_a_reshape_of_the_only_head_of_a_rank():
    def turned(x):
        pairs = x.view(*x.shape[:-1], -1, 48).unflatten(-1, (-1, 2))
        return (pairs * torch.ones(24, 1, device=x.device)).flatten(-3)

    program = fe.export(with_mlp(turned), parallel="tp=2")

    assert len(program.graph.nodes) > 0


def test_packed_experts_that_the_plan_shards_as_one_weight():
    """In transformers 5.23 the plan of Inkling does."""
    from transformers import AutoModelForCausalLM, InklingTextConfig

    config = InklingTextConfig(
        vocab_size=100,
        hidden_size=64,
        intermediate_size=96,
        moe_intermediate_size=32,
        num_hidden_layers=2,
        num_attention_heads=8,
        num_key_value_heads=4,
        n_routed_experts=8,
        num_experts_per_tok=2,
        pad_token_id=0,
        mlp_layer_types=["dense", "sparse"],
    )

    def small():
        return AutoModelForCausalLM.from_config(config), (torch.zeros(2, 7, dtype=torch.long),)

    assert "mlp.experts takes features 0 to 16 of the 32 on a rank" in refusal(small)
