"""At sizes that the export did not see, a loaded program gives what eager gives or refuses by name."""

from __future__ import annotations

import pytest

from tests.architectures import ARCHITECTURES
from tests.round_trip.guarded_sizes import calls_at_other_sizes
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
    assert [call for call in calls if call.outcome == "different"] == []
    assert all("\n" not in call.detail for call in calls if call.outcome == "refused")
