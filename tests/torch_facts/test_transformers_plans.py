"""What `models/parallel/application.py` relies on in transformers: nothing of it is documented."""

import inspect

import pytest

from tests.parallel_models import factory_of

transformers = pytest.importorskip("transformers")
distributed = pytest.importorskip("transformers.distributed")


@pytest.fixture(scope="module")
def model():
    return factory_of("mixtral")()[0]


def resolved(model, **sizes):
    return model._resolve_parallel_plans(distributed.DistributedConfig(**sizes))


def test_plans_name_modules_and_weights(model):
    tensor, expert, _ = resolved(model, tp_size=2, ep_size=1)

    assert tensor["model.layers.0.self_attn.q_proj"] == "colwise"
    assert tensor["model.layers.1.mlp.experts.gate_up_proj"] == "packed_colwise"
    assert tensor["model.layers.1.mlp.experts"] == "moe_tp_experts"
    assert tensor["lm_head"] == "colwise_gather_output"
    assert expert == {}


def test_an_expert_rule_replaces_the_tensor_rules_below_it(model):
    tensor, expert, _ = resolved(model, tp_size=2, ep_size=2)

    assert expert["model.layers.0.mlp.experts.down_proj"] == "grouped_gemm"
    assert expert["model.layers.0.mlp.experts"] == "ep_dispatch_experts"
    assert not any(".experts" in name for name in tensor)


def test_a_plan_that_is_set_is_used(model):
    changed = factory_of("mixtral")()[0]
    changed.tp_plan = {"lm_head": "colwise"}

    assert resolved(changed, tp_size=2)[0]["lm_head"] == "colwise"
    with pytest.raises(ValueError, match="no_style"):
        changed.tp_plan = {"lm_head": "no_style"}


def test_styles_shard_through_one_function_of_their_module():
    from transformers.distributed import expert_parallel, tensor_parallel
    from transformers.distributed.parallel_utils import ALL_PARALLEL_STYLES, replace_layer_number_by_wildcard

    for module in (tensor_parallel, expert_parallel):
        assert list(inspect.signature(module.distribute_tensor).parameters)[:3] == [
            "tensor",
            "device_mesh",
            "placements",
        ]
    for name in ("colwise", "packed_colwise", "rowwise", "embedding_rowwise", "grouped_gemm"):
        assert next(iter(inspect.signature(ALL_PARALLEL_STYLES[name].shard_param).parameters)) == "module"
    assert replace_layer_number_by_wildcard("model.layers.3.mlp") == "model.layers.*.mlp"
