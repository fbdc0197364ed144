"""Planned peaks of small models equal those of real runs, or the plan names what it leaves out."""

from __future__ import annotations

import pytest
import torch

from benchmarks.cpu_peaks import TOLERANCE, Row, measured, page
from benchmarks.peak_models import CASES

pytestmark = pytest.mark.filterwarnings("ignore")

IS_MEASURED = torch.backends.cpu.get_cpu_capability() == "AVX2"
QUICK = (
    *("cdist", "conv1d, bfloat16", "conv2d, 24 channels", "conv2d, bfloat16", "conv2d, depthwise", "conv3d"),
    *("conv transpose 2d", "densenet block", "fft", "masks and dtypes", "linear, bfloat16"),
)


@pytest.mark.parametrize("name", QUICK)
def test_a_planned_peak_is_the_real_one(name: str) -> None:
    row = measured(name)

    assert row.is_right
    if IS_MEASURED:
        assert row.unmodeled == ()


@pytest.mark.exhaustive
@pytest.mark.parametrize("name", [name for name in CASES if name not in QUICK])
def test_a_planned_peak_is_the_real_one_or_named(name: str) -> None:
    assert measured(name).is_right


def test_the_page_shows_the_worst_first() -> None:
    rows = [Row(f"model {i}", 1, 100 + i, 100, ("aten.op",) * (i == 3)) for i in range(12)]

    worst = page(rows).partition("## The worst")[2].partition("## All")[0]

    assert [f"model {i} " in worst for i in range(12)] == [False, False] + 10 * [True]
    assert worst.index("model 11 ") < worst.index("model 10 ")
    assert "| model 3 | 1 | 103 | 100 | +3.0% | `aten.op` |" in worst


def test_a_wrong_plan_is_right_only_if_it_says_so() -> None:
    wrong = Row("model", 1, 150, 100, ())

    assert abs(wrong.error) > TOLERANCE
    assert not wrong.is_right
    assert Row("model", 1, 150, 100, ("aten.op",)).is_right
