"""The plan of a single operator is its real peak, or names what it does not model."""

from __future__ import annotations

import pytest

from benchmarks.operator_peaks import samples

pytestmark = pytest.mark.filterwarnings("ignore")

QUICK = ("cdist", "fft.irfft2", "gather", "histc", "logsumexp", "nn.functional.mse_loss", "unsafe_split")


@pytest.mark.slow
def test_operators_of_torchs_own_tests_take_what_is_planned() -> None:
    found = list(samples(QUICK))

    assert {sample.operator for sample in found} == set(QUICK)
    assert [sample for sample in found if sample.is_wrong] == []
    assert {sample.operator for sample in found if sample.is_named} == {"histc"}


@pytest.mark.exhaustive
def test_all_operators_of_torchs_own_tests_take_what_is_planned() -> None:
    found = list(samples())

    assert len({sample.operator for sample in found}) > 600
    # Strides that overlap or leave gaps: the plan counts the elements.
    assert {sample.operator for sample in found if sample.is_wrong} <= {"empty_strided"}
