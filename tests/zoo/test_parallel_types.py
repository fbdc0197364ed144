"""The ranks of every type with a plan compute what eager mode computes, or the page says why they do not."""

from __future__ import annotations

import pytest

from tests.round_trip.ranks import Outcome, outcomes_of, planned_types
from tests.round_trip.ranks_page import kind_of, published

pytest.importorskip("transformers")
pytestmark = [
    pytest.mark.zoo,
    pytest.mark.filterwarnings("ignore"),  # What torch and transformers think of sizes and of each other.
]
# A rank with one head, a graph in a graph, and a conversion of weights that compares with shapes.
MARKS = dict.fromkeys(("llama4_text", "hrm_text", "qwen3_vl_moe"), pytest.mark.slow)


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=MARKS.get(name, pytest.mark.exhaustive)) for name in published()],
)
def test_the_ranks_of_a_type_do_what_the_page_says(name, tmp_path):
    if name not in planned_types():
        pytest.skip(f"this transformers has no {name} with a plan")

    found = outcomes_of(name, tmp_path)

    assert {degree: outcome.is_equal for degree, outcome in found.items()} == published()[name]


def test_no_type_differs_silently():
    rows = published()

    assert len(rows) > 150
    assert sum(equal.get("tp=2", False) for equal in rows.values()) > 100
    assert not any(kind_of(Outcome(difference)) == "different from eager mode" for difference in (0.0, 9e-6))
