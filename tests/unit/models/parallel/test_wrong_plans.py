"""A plan by which ranks compute something else than the model is refused, although every shape fits."""

import importlib

import pytest
import torch

import fakexport as fe
from fakexport.archive import bind
from tests.lockstep import run_ranks
from tests.parallel_models import factory_of, logits_of, small_model, token_ids

pytest.importorskip("transformers")

LAYER = "model.layers.*"


def planned(family, changes, **sizes):
    """Return a factory of a model whose plan is changed; None takes a rule away."""

    def factory():
        model, inputs = factory_of(family, num_hidden_layers=1, **sizes)()
        for name, style in changes.items():
            if style is None:
                del model._tp_plan[name]
            else:
                model._tp_plan[name] = style
        return model, inputs

    return factory


def with_mlp(forward, up="up_proj"):
    """Return a factory of a Llama whose MLP computes `forward` between its projections."""

    def factory():
        model, inputs = factory_of("llama", num_hidden_layers=1)()
        return changed(model, forward), inputs

    return factory


def changed(model, forward):
    mlp = model.model.layers[0].mlp
    mlp.forward = lambda x: mlp.down_proj(forward(mlp.up_proj(x), mlp))
    return model


def softmax(x, mlp):
    return x.softmax(-1)


def halves(x, mlp):
    first, second = x.chunk(2, -1)
    return torch.cat((first * second, second), -1)


def reversed_features(x, mlp):
    return x.flip(-1)


def centered(x, mlp):
    return x - x.mean(-1, keepdim=True)


def numbered(x, mlp):
    return x * torch.arange(x.shape[-1], device=x.device)


WRONG_PLANS = {
    "packed weights as one": (
        "mixtral",
        {f"{LAYER}.mlp.experts.gate_up_proj": "colwise"},
        "model.layers.0.mlp.experts takes features 0 to 48 of the 96 on a rank",
    ),
    "no sum over experts": (
        "mixtral",
        {f"{LAYER}.mlp.experts": None},
        "adds a replicated tensor to a partial sum",
    ),
    "a sum of what is whole": (
        "llama",
        {f"{LAYER}.input_layernorm": "all_reduce"},
        "input_layernorm adds up a tensor over 2 ranks, although each rank has the whole tensor",
    ),
    "logits in parts": ("qwen3", {"lm_head": "colwise"}, "logits is a shard of one rank (51 of 101)"),
}
WRONG_MODELS = {
    softmax: "computes softmax along a sharded dimension",
    halves: "takes features 0 to 24 of the 48 on a rank",
    reversed_features: "computes flip along a sharded dimension",
    centered: "computes mean along a sharded dimension",
    numbered: "calls aten.arange.default with end=48, but the unsharded model uses 96",
}


SLOW_TOO = [pytest.param(name, marks=pytest.mark.slow) for name in list(WRONG_PLANS)[1:]]


def refusal(factory):
    with pytest.raises(ValueError, match=r".") as caught:
        fe.export(factory, parallel="tp=2")
    return str(caught.value)


@pytest.mark.parametrize("name", ["packed weights as one", *SLOW_TOO])
def test_a_plan_that_changes_the_result(name):
    family, changes, fragment = WRONG_PLANS[name]

    assert fragment in refusal(planned(family, changes))


@pytest.mark.slow
@pytest.mark.parametrize("name", list(WRONG_PLANS)[:3])
def test_the_ranks_of_a_wrong_plan_compute_something_else(name, monkeypatch):
    """It is not refused for nothing: without the check, the ranks run, and differ from eager mode."""
    family, changes, _ = WRONG_PLANS[name]
    checked = importlib.import_module("fakexport.exporting.capture.capture")
    monkeypatch.setattr(checked, "check_rank_layouts", lambda program, whole, record: None)
    factory, model = planned(family, changes), small_model(family, num_hidden_layers=1)
    programs = [fe.export(factory, parallel="tp=2", rank=rank) for rank in range(2)]
    ids = token_ids()[0][:2, :7]

    outputs = run_ranks([bind(program, model.state_dict()) for program in programs], ids)[0]

    expected = logits_of(model, ids)
    assert outputs[0].shape == expected.shape
    assert not torch.allclose(outputs[0], expected, atol=1e-2)


@pytest.mark.parametrize(
    "forward",
    [halves, *(pytest.param(each, marks=pytest.mark.slow) for each in WRONG_MODELS if each is not halves)],
    ids=lambda forward: forward.__name__,
)
def test_a_model_that_needs_all_of_the_features(forward):
    assert WRONG_MODELS[forward] in refusal(with_mlp(forward))
