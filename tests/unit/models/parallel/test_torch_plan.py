"""A plan of torch's styles shards a model that is not of transformers."""

import json

import pytest
import torch
from torch import nn
from torch.distributed.tensor import Replicate, Shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    PrepareModuleInput,
    RowwiseParallel,
    SequenceParallel,
)

import fakexport as fe
from fakexport.archive import bind, save
from fakexport.checking import check
from fakexport.exporting.program import facts_of
from tests.gloo_ranks import spawned
from tests.lockstep import run_ranks
from tests.parallel_models import token_ids
from tests.plain_parallel import both_ways, factory, plan

pytest.importorskip("transformers")


def programs(given, **options):
    return [
        fe.export(factory, parallel="tp=2", parallel_plan=given, rank=rank, **options) for rank in range(2)
    ]


@pytest.fixture(scope="module")
def ranks():
    return programs(plan(), dynamic_shapes=["ids.0=1..64", "ids.1=1..128"])


@pytest.fixture(scope="module")
def model():
    torch.manual_seed(0)
    return factory()[0]


def test_ranks_together_compute_the_model(ranks, model):
    bound = [bind(program, model.state_dict()) for program in ranks]

    for ids in token_ids():
        for outputs in run_ranks(bound, ids):
            torch.testing.assert_close(outputs[0], model(ids), rtol=2e-5, atol=2e-5)
    shapes = {name: tuple(weight.shape) for name, weight in ranks[0].state_dict.items()}
    assert shapes["embedding.weight"] == (50, 32)
    assert shapes["layers.1.up.weight"] == (25, 32)
    assert shapes["layers.1.down.weight"] == (32, 25)
    assert shapes["layers.1.norm.weight"] == (32,)
    assert facts_of(ranks[1]).parallel.degrees == "tp=2"


@pytest.mark.slow
def test_two_processes_compute_what_torch_shards(ranks, model, tmp_path):
    from safetensors.torch import save_file

    for rank, program in enumerate(ranks):
        save(program, tmp_path / f"rank{rank}.pt2")
    save_file(model.state_dict(), tmp_path / "model.safetensors")
    torch.save(token_ids(), tmp_path / "ids.pt")

    for outputs in spawned(both_ways, tmp_path, 2):
        for (found, sharded), ids in zip(outputs, token_ids(), strict=True):
            torch.testing.assert_close(found, model(ids), rtol=2e-5, atol=2e-5)
            torch.testing.assert_close(found, sharded, rtol=2e-5, atol=2e-5)


def test_a_file_is_a_plan_for_such_a_model_too(tmp_path):
    rules = {"layers.*.up": "colwise", "layers.*.down": "rowwise"}
    (tmp_path / "plan.json").write_text(json.dumps(rules))

    report = check(factory, parallel=f"tp=2,plan={tmp_path / 'plan.json'}")

    assert report.is_clean
    assert sum(found.count for found in report.verdicts[0].ranks.collectives) == 2


def test_a_plan_that_changes_the_result_is_found():
    report = check(factory, parallel="tp=2", parallel_plan={**plan(), "head": ColwiseParallel()})

    (found,) = report.diagnostics
    assert found.code == "FE405"
    assert "is a shard of one rank (50 of 100): no tensor-parallel style gathers it" in found.notes[0]


@pytest.mark.parametrize(
    ("given", "fragment"),
    [
        (
            {"layers.*.no": ColwiseParallel()},
            "parallel_plan: layers.*.no matches no module or parameter of Lang",
        ),
        ({"layers.0": ColwiseParallel()}, "the parallel plan of Language does not shard any"),
        ({"embedding": ColwiseParallel()}, "the module embedding: Embedding has no out_features"),
        ({"embedding": RowwiseParallel()}, "the module embedding: Embedding has no in_features"),
        ({"layers.*.norm": SequenceParallel()}, "layers.*.norm: SequenceParallel is not supported"),
        (
            {"layers.0": PrepareModuleInput(input_layouts=(Shard(1),), desired_input_layouts=(Replicate(),))},
            "PrepareModuleInput is not supported",
        ),
        (
            {"head": ColwiseParallel(input_layouts=Shard(1))},
            "input_layouts=(Shard(dim=1),), output_layouts=(Shard(dim=-1),)",
        ),
        (
            {"layers.*.o": RowwiseParallel(output_layouts=Shard(1))},
            "(Shard(dim=1),) and use_local_output=True",
        ),
        ({"head": ColwiseParallel(use_local_output=False)}, "use_local_output=False is not supported"),
        ({"head": "sideways"}, "head: unknown style 'sideways'"),
        ({"head": "colwise", "h*d": "rowwise"}, "two rules with different styles match head"),
        ({}, "parallel_plan has no rules"),
    ],
)
def test_what_is_not_understood_is_one_line(given, fragment):
    with pytest.raises(ValueError, match=r".") as caught:
        fe.export(factory, parallel="tp=2", parallel_plan=given)

    assert fragment in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_degree_that_does_not_divide_has_less_on_the_last_rank_or_is_refused():
    with pytest.raises(ValueError, match="64 ranks: its dimension of size 50 leaves some ranks without"):
        fe.export(factory, parallel="tp=64", parallel_plan={"layers.*.up": "colwise"})


def test_a_plan_without_degrees():
    with pytest.raises(ValueError, match="parallel_plan requires the argument parallel"):
        fe.export(factory, parallel_plan=plan())


def test_a_module_without_a_plan():
    with pytest.raises(ValueError, match=r"Linear has no tensor-parallel plan .*plan=FILE"):
        fe.export(lambda: (nn.Linear(4, 4), (torch.zeros(2, 4),)), parallel="tp=2")
