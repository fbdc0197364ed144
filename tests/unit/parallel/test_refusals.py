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


@pytest.mark.parametrize(
    ("parallel", "fragment"),
    [
        ("tp=3", "tp=3 does not divide the 8 heads of model.layers.0.self_attn.q_proj"),
        ("tp=8", "tp=8 does not divide the 4 heads of model.layers.0.self_attn.k_proj"),
    ],
)
def test_a_degree_that_does_not_divide_the_heads(parallel, fragment):
    assert fragment in refusal(factory_of("llama"), parallel)


def test_a_dimension_with_less_than_a_part_for_each_rank():
    small = factory_of("llama", intermediate_size=5)

    assert "a dimension of 5 has no part for some of 4 ranks" in refusal(small, "tp=4")


def test_experts_that_the_degree_does_not_divide():
    small = factory_of("mixtral", num_local_experts=3)

    assert "ep=2 does not divide the 3 experts of model.layers.0.mlp.experts" in refusal(small, "tp=2,ep=2")


def test_a_type_without_a_plan():
    from transformers import GPT2Config, GPT2LMHeadModel

    tiny = GPT2Config(n_layer=1, n_embd=8, n_head=2, vocab_size=10)

    assert "has no tensor parallel plan" in refusal(
        lambda: (GPT2LMHeadModel(tiny), (torch.zeros(1, 2).long(),))
    )


def test_a_dense_model_has_no_expert_plan():
    assert "has no expert parallel plan" in refusal(factory_of("llama"), "tp=2,ep=2")


def test_a_module_that_is_not_of_transformers():
    assert "needs a model of transformers" in refusal(lambda: (nn.Linear(4, 4), (torch.zeros(2, 4),)))
    assert "needs an hf: model" in refusal(nn.Linear(4, 4), args=(torch.zeros(2, 4),))


def test_more_ranks_than_devices():
    assert "needs 4 devices, and 2xH100-80GB has 2" in refusal(factory_of("llama"), "tp=4", target="2xH100")


def test_a_rank_that_is_not():
    assert "has the ranks 0 to 1, not 2" in refusal(factory_of("llama"), rank=2)


@pytest.mark.parametrize("rank", [0, 2, "all"])
def test_a_rank_without_parallel(rank):
    assert "a rank needs --parallel" in refusal(factory_of("llama"), None, rank=rank)


@pytest.mark.parametrize(
    ("options", "fragment"),
    [
        ({"strict": True}, "does not go with --strict"),
        ({"device_map": "cpu"}, "leave out --device-map"),
    ],
)
def test_options_that_do_not_go_together(options, fragment):
    assert fragment in refusal(factory_of("llama"), **options)


def test_a_call_of_generation():
    assert "applies to --workload forward" in refusal("hf:llama", workload="decode")


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
    assert "up_proj.weight is sharded, and model.layers.0.mlp reads it" in refusal(reading_a_weight_outside)


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

    assert "mlp.experts takes 0 to 16 of the 32 sharded features of a rank" in refusal(small)
