"""Planned peaks of small models equal those of real runs, or the plan names what it leaves out."""

from __future__ import annotations

import pytest
import torch

from benchmarks.cpu_peaks import measured
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
