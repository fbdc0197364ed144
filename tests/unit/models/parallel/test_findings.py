"""What a rank cannot compute is a diagnostic at the line of the model, with a fix."""

import pytest
import torch

from fakexport.checking import check
from tests.unit.models.parallel.test_refusals import reading_a_weight_outside, with_mlp

pytest.importorskip("transformers")


def found_in(factory):
    (found,) = check(factory, parallel="tp=2").diagnostics
    assert found.primary.span.path.endswith(("test_findings.py", "modeling_llama.py"))
    return found


def test_an_operator_without_a_rule_and_what_a_gather_would_move():
    found = found_in(with_mlp(lambda x: x.logcumsumexp(-1)))

    assert found.code == "FE405"
    assert found.notes == (
        "model.layers.0.mlp calls aten.logcumsumexp, which has no sharding rule, on sharded features",
        # 2 x 7 tokens with 48 of 96 features of float32.
        "DTensor would gather the shards here: each rank would receive 2,688 bytes from every other rank in "
        "every call",
    )
    assert "plan=FILE.json" in found.fix.message


def test_number_computed_from_the_size_of_a_shard():
    found = found_in(with_mlp(lambda x: x / x.shape[-1]))

    assert found.code == "FE405"
    assert found.notes == (
        "model.layers.0.mlp calls aten.div.Tensor with other=48, but the unsharded model uses 96: the "
        "model computes a number from the size of a shard",
    )
    assert "config" in found.fix.message


@pytest.mark.slow
def test_a_weight_that_is_read_outside_of_its_module():
    found = found_in(reading_a_weight_outside)

    assert found.code == "FE405"
    assert "up_proj.weight is sharded, but model.layers.0.mlp reads the tensor directly" in found.notes[0]


@pytest.mark.slow
def test_a_size_of_the_whole_model_that_does_not_fit():
    found = found_in(with_mlp(lambda x: x + torch.zeros(96, device=x.device)))

    assert found.code == "FE202"
    assert "each of the 2 ranks computes only a shard" in found.notes[-1]
    assert "read it from the tensor" in found.fix.message
