"""Predicted peaks of small models of every kind are the measured ones, at sizes that were not traced."""

from __future__ import annotations

import pytest
import torch

from benchmarks.plan_accuracy import EXPLAINED, MODELS, TOLERANCE, rows
from fakexport.planning.memory.convolution import BLOCKS

pytest.importorskip("transformers")
pytestmark = [pytest.mark.zoo, pytest.mark.filterwarnings("ignore")]

IN_CI = ("llama", "gpt2", "bert", "vit")


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=pytest.mark.slow if name in IN_CI else pytest.mark.exhaustive)
        for name in MODELS
        if name not in EXPLAINED
    ],
)
def test_a_peak_is_predicted(name: str) -> None:
    if name not in ("llama", "gpt2", "bert") and torch.backends.cpu.get_cpu_capability() not in BLOCKS:
        pytest.skip("convolutions are computed in other blocks on this processor")

    found = [row for row in rows(name) if "measured" in row]
    errors = {(row["execution"], str(row["sizes"])): row["error"] for row in found}

    assert {row["execution"] for row in found} >= {"module()"}
    assert {sizes: error for sizes, error in errors.items() if abs(error) > TOLERANCE} == {}
