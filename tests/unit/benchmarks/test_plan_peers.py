"""The estimates that a plan is compared with: each next to the run that it is about."""

from __future__ import annotations

import pytest
import transformers
from torch import nn

from benchmarks.plan_peers import Case, accelerate_bytes, formula_bytes, peer_rows

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


@pytest.mark.slow
def test_plans_and_the_tracker_are_exact_for_a_small_model():
    pytest.importorskip("accelerate")

    rows = list(peer_rows("tiny", Case(TINY, sizes=((2, 16), (3, 24)))))

    assert [row["sizes"] for row in rows] == [{"batch": 2, "context": 16}, {"batch": 3, "context": 24}]
    for row in rows:
        assert row["predicted"]["plan"] == row["measured"]["module()"]
        assert row["predicted"]["plan --eager"] == row["measured"]["eager"]
        assert row["predicted"]["MemTracker"] == row["measured"]["eager"]
