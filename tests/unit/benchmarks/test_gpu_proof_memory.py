"""Plans next to a GPU: intervals, comparison and table need none, and the calls run on the CPU."""

from __future__ import annotations

import json

import pytest
import torch

import fakexport as fe
from benchmarks.gpu_proof.memory import Case, call_of, error_of, intervals, planned
from fakexport.report import to_dict

TINY = {
    "model_type": "llama", "vocab_size": 64, "hidden_size": 32, "intermediate_size": 48,
    "num_hidden_layers": 2, "num_attention_heads": 2, "num_key_value_heads": 2,
}  # fmt: skip


@pytest.fixture(scope="module")
def config(tmp_path_factory):
    path = tmp_path_factory.mktemp("llama") / "config.json"
    path.write_text(json.dumps(TINY))
    return f"hf:{path}"


def test_reserved_memory_is_the_total_without_the_context():
    found = intervals(
        {
            "allocated_bytes": 100,
            "total": {"lower": 450, "upper": 960},
            "overheads": [
                {"bytes": {"lower": 20, "upper": 30}, "is_allocated": True},
                {"bytes": {"lower": 300, "upper": 800}, "is_allocated": False},
            ],
        }
    )

    assert found == {"allocated": (100, 100), "reserved": (150, 160), "device": (450, 960)}


@pytest.mark.parametrize(("size", "error"), [(200, -0.5), (80, 0.125), (90, 0.0), (100, 0.0), (95, 0.0)])
def test_an_error_is_the_distance_from_the_interval(size, error):
    assert error_of((90, 100), size) == error


def test_the_levels_of_a_plan_are_ordered_and_hold_its_tensors(program):
    (device,) = to_dict(fe.plan(program))["points"][0]["devices"]

    found = intervals(device)

    tensors = sum(device[kind] for kind in ("weights", "constants", "state", "inputs", "activations"))
    assert tensors <= found["allocated"][0] <= found["reserved"][1] < found["device"][1]
    assert found["reserved"][0] < found["device"][0]


@pytest.fixture(scope="module")
def program():
    return fe.export(lambda: (torch.nn.Linear(512, 512), (torch.zeros(8, 512),)), target="H100")


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("workload", ["forward", "prefill", "decode"])
def test_the_program_of_a_case_runs_with_random_weights(config, workload, tmp_path):
    archive = tmp_path / "model.pt2"

    plan = planned(Case(config, workload, 2, 16, "float32"), "cpu", archive)
    result = call_of(fe.load(archive), "cpu")()

    tensors = [leaf for leaf in torch.utils._pytree.tree_leaves(result) if isinstance(leaf, torch.Tensor)]
    assert plan["device"]["name"] == "cpu"
    assert tensors[0].shape[0] == 2
    assert len(tensors) == (1 if workload == "forward" else 1 + 2 * TINY["num_hidden_layers"])
