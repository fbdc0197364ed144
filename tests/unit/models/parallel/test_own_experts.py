"""Experts that a rank has for itself: what the code computes with their number is rejected, or right."""

import importlib

import pytest
import torch
from torch import nn

import fakexport as fe
from fakexport.archive import bind
from tests.lockstep import run_ranks
from tests.parallel_models import DYNAMIC, logits_of, small_model, token_ids

pytest.importorskip("transformers")

EXPERTS, FEATURES = 4, 64


class Experts(nn.Module):
    """Experts that are linear layers; ids that are too great are of other ranks."""

    def __init__(self, step):
        super().__init__()
        self.num_experts, self.step = EXPERTS, step
        self.gate_up_proj = nn.Parameter(torch.randn(EXPERTS, FEATURES, FEATURES) / 8)
        self.bias = nn.Parameter(torch.randn(EXPERTS, FEATURES))

    def forward(self, hidden, index, weights):
        count = self.gate_up_proj.shape[0]
        ids = index.clamp(max=count - 1)
        rows = torch.einsum("td,tkdh->tkh", hidden, self.gate_up_proj[ids])
        rows = self.step(self, rows, ids, count, weights)
        return (rows * weights.unsqueeze(-1)).sum(1)


def mixtral(step):
    model = small_model("mixtral", num_hidden_layers=1)
    model.model.layers[0].mlp.experts = Experts(step)
    return model


def programs_of(step, ranks=(0, 1)):
    def factory():
        return mixtral(step), (torch.zeros(2, 7, dtype=torch.long),)

    options = {"dynamic_shapes": DYNAMIC}
    return [fe.export(factory, parallel="tp=2,ep=2", rank=rank, **options) for rank in ranks]


def both_results(step):
    """Return what the ranks compute together, and what eager mode computes."""
    model, ids = mixtral(step), token_ids()[0]
    bound = [bind(program, model.state_dict()) for program in programs_of(step)]
    return [outputs[0] for outputs in run_ranks(bound, ids)], logits_of(model, ids)


def only_its_rows(experts, rows, ids, count, weights):
    return rows.sigmoid()


def masked_beyond_its_experts(experts, rows, ids, count, weights):
    return rows.masked_fill((ids >= count).unsqueeze(-1), 0.0)


RIGHT = [only_its_rows, masked_beyond_its_experts]


@pytest.mark.parametrize("step", RIGHT)
def test_ranks_compute_the_model(step):
    results, expected = both_results(step)

    for result in results:
        torch.testing.assert_close(result, expected, rtol=2e-5, atol=2e-5)


def by_a_bias_of_all_experts(experts, rows, ids, count, weights):
    return rows + experts.bias[ids]


def by_the_number_of_experts(experts, rows, ids, count, weights):
    return rows / count


def by_a_number_made_of_integers(experts, rows, ids, count, weights):
    return rows * (ids * 0 + count).unsqueeze(-1)


def by_its_ids(experts, rows, ids, count, weights):
    return rows * ids.unsqueeze(-1)


def by_its_ids_as_floats(experts, rows, ids, count, weights):
    return rows * ids.float().unsqueeze(-1)


def by_one_expert(experts, rows, ids, count, weights):
    return torch.where((ids == 0).unsqueeze(-1), rows * 2, rows)


def by_a_range(experts, rows, ids, count, weights):
    return rows / torch.arange(count, device=rows.device).max()


def by_a_mean_over_experts(experts, rows, ids, count, weights):
    return rows * experts.gate_up_proj.mean(0).mean()


def by_a_sum_over_experts(experts, rows, ids, count, weights):
    return rows * experts.gate_up_proj.sum(0).mean()


def by_a_capacity(experts, rows, ids, count, weights):
    capacity = 8 // count
    return torch.cat([rows[:capacity], rows[capacity:] * 0])


def by_counts(experts, rows, ids, count, weights):
    counts = torch.histc(ids.float(), bins=count, min=0, max=count - 1)
    return rows / (counts.mean() + 1)


def after_its_sum(experts, rows, ids, count, weights):
    return rows + rows.sum(1, keepdim=True).sigmoid()


def by_a_maximum(experts, rows, ids, count, weights):
    return rows / (ids.max() + 1)


WRONG = [
    by_a_bias_of_all_experts,
    by_the_number_of_experts,
    by_a_number_made_of_integers,
    by_its_ids,
    by_its_ids_as_floats,
    by_one_expert,
    by_a_range,
    by_a_mean_over_experts,
    by_a_sum_over_experts,
    by_a_capacity,
    by_counts,
    after_its_sum,
    by_a_maximum,
]


@pytest.mark.parametrize("step", WRONG)
def test_a_number_of_a_ranks_experts_that_becomes_a_value_is_rejected(step):
    with pytest.raises(ValueError, match="experts") as caught:
        programs_of(step, ranks=[1])

    assert (caught.value.span.path, caught.value.span.function) == (__file__, "forward")


@pytest.mark.exhaustive
@pytest.mark.parametrize("step", WRONG)
def test_a_number_of_a_ranks_experts_that_becomes_a_value_changes_the_result(step, monkeypatch):
    """Without the check, the ranks compute other values than eager mode."""
    capture = importlib.import_module("fakexport.exporting.capture.capture")
    for name in ("check_rank_layouts", "check_constants"):
        monkeypatch.setattr(capture, name, lambda *programs: None)

    results, expected = both_results(step)

    assert not torch.allclose(results[0], expected, atol=1e-3)
