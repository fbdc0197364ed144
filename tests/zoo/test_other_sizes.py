"""At sizes that the export did not see, a loaded program gives what eager gives or refuses by name."""

from __future__ import annotations

import pytest

from tests.architectures import ARCHITECTURES
from tests.round_trip.guarded_sizes import calls_at_other_sizes
from tests.round_trip.reasons import DIFFERENT
from tests.round_trip.sizes_page import OtherSizes, counted, published
from tests.zoo.test_recovered_constants import EXCLUDED

pytest.importorskip("transformers")
pytestmark = [
    pytest.mark.alone,
    pytest.mark.zoo,
    pytest.mark.filterwarnings("ignore"),  # What torch and transformers think of sizes and of each other.
]

# One takes up to two minutes: by default one runs, and in CI the one that was silently wrong before as well.
MARKS = {"gpt2": (), "qwen3_next": pytest.mark.slow}


@pytest.mark.parametrize(
    "architecture",
    [
        pytest.param(each, id=str(each), marks=MARKS.get(str(each), pytest.mark.exhaustive))
        for each in ARCHITECTURES
        if str(each) not in EXCLUDED
    ],
)
def test_no_size_gives_another_result_silently(architecture, tmp_path):
    if not architecture.is_available:
        pytest.skip(f"this transformers has no {architecture}")

    calls = calls_at_other_sizes(architecture.source(tmp_path), tmp_path)

    if calls is None:
        pytest.skip("it does not export with sizes that vary")
    assert [
        call for call in calls if call.outcome == "different" and str(architecture) not in DIFFERENT
    ] == []
    assert all("\n" not in call.detail for call in calls if call.outcome == "refused")
    row = counted(str(architecture), [call.outcome for call in calls])
    assert up_to_rounding(row) == up_to_rounding(published()[str(architecture)])


def up_to_rounding(row: OtherSizes) -> dict[str, int]:
    """The counts; whether a result is equal or close is a matter of the processor."""
    counts = dict(row.counts)
    return {**counts, "equal": counts.get("equal", 0) + counts.pop("close", 0)}


def test_what_is_published_has_no_difference_without_a_reason():
    rows = published()

    assert len(rows) > 300
    assert {name for name, row in rows.items() if row.counts.get("different")} <= DIFFERENT.keys()
