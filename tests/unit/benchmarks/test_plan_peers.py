"""The estimates that a plan is compared with: each next to the run that it is about."""

from __future__ import annotations

import pytest
import transformers
from torch import nn

from benchmarks.plan_peers import ESTIMATES, Case, accelerate_bytes, formula_bytes, peer_rows, peers_table

pytestmark = pytest.mark.filterwarnings("ignore")
GIB = 2**30
TINY = {
    "model_type": "bert", "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2,
    "intermediate_size": 64, "vocab_size": 128,
}  # fmt: skip


def test_the_cache_of_the_formula_is_the_published_one():
    """Llama-3.1-8B, bfloat16, 4,096 tokens: half a GiB."""
    config = transformers.AutoConfig.from_pretrained("examples/configs/llama-3.1-8b.json")

    assert formula_bytes(config, 0, 2, 4096) == GIB / 2
    assert formula_bytes(config, 10, 2, None) == 24


def test_accelerate_counts_weights():
    pytest.importorskip("accelerate")

    assert accelerate_bytes(nn.Linear(10, 10, bias=False)) == pytest.approx(1.2 * 400)


def test_each_estimate_is_compared_with_the_run_that_it_is_about():
    row = {
        "model": "m",
        "measured": {"module()": 100, "eager": 200},
        "predicted": {"plan": 100, "plan --eager": 200, "MemTracker": 100, "accelerate": 199, "formula": 300},
        "seconds": dict.fromkeys(ESTIMATES, 1.0),
    }

    table = peers_table([row, {**row, "seconds": dict.fromkeys(ESTIMATES, 0.25)}]).splitlines()

    assert table[2:] == [
        "| plan | 2 of 2 | 0.0% | 0.0% | +0.0% | 0% | 1.00 s | 0.25 s |",
        "| plan --eager | 2 of 2 | 0.0% | 0.0% | +0.0% | 0% | 1.00 s | 0.25 s |",
        "| MemTracker | 2 of 2 | 50.0% | 50.0% | -50.0% | 100% | 1.00 s | 0.25 s |",
        "| accelerate | 2 of 2 | 0.5% | 0.5% | -0.5% | 0% | 1.00 s | 0.25 s |",
        "| formula | 2 of 2 | 50.0% | 50.0% | +50.0% | 0% | 1.00 s | 0.25 s |",
    ]


@pytest.mark.slow
def test_plans_and_the_tracker_are_exact_for_a_small_model():
    pytest.importorskip("accelerate")

    rows = list(peer_rows("tiny", Case(TINY, sizes=((2, 16), (3, 24)))))

    assert [row["sizes"] for row in rows] == [{"batch": 2, "context": 16}, {"batch": 3, "context": 24}]
    for row in rows:
        assert row["predicted"]["plan"] == row["measured"]["module()"]
        assert row["predicted"]["plan --eager"] == row["measured"]["eager"]
        assert row["predicted"]["MemTracker"] == row["measured"]["eager"]
