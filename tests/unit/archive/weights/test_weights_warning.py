"""What is said of weights that are bound all the same: one line, of one or of many."""

from __future__ import annotations

import warnings

import pytest
import torch
from torch import nn

import fakexport as fe
from fakexport.archive.weights import WeightFinding, WeightsWarning, warn_of

UNWANTED = "that the model does not use"


@pytest.mark.parametrize(
    ("code", "names", "text"),
    [
        ("FE704", ["a", "b", "c", "d"], f"FE704: ckpt/ has 4 entries {UNWANTED}: a, b, c, ..."),
        (
            "FE704",
            [f"h.{i}.bias" for i in range(1200)],
            f"FE704: ckpt/ has 1,200 entries {UNWANTED}: h.{{0..1199}}.bias",
        ),
        ("FE704", ["a\nwarning: forged"], rf"FE704: ckpt/ has an entry {UNWANTED}: a\nwarning: forged"),
        ("FE706", ["a", "b"], "FE706: 2 weights have NaN or infinity: a, b"),
    ],
)
def test_a_finding_is_one_line(code: str, names: list[str], text: str) -> None:
    with pytest.warns(WeightsWarning) as caught:
        warn_of("ckpt/", [WeightFinding(code, tuple(names))])

    assert [str(warning.message) for warning in caught] == [text]


def test_what_prevents_the_binding_is_no_warning() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warn_of("ckpt/", [WeightFinding("FE701", ("fc.weight",))])


def test_the_warning_is_at_the_line_that_called_fakexport() -> None:
    program = fe.export(nn.Linear(4, 2), (torch.zeros(3, 4),))
    weights = {"weight": torch.zeros(2, 4), "bias": torch.zeros(2), "more": torch.zeros(1)}

    with pytest.warns(WeightsWarning) as caught:
        fe.bind(program, weights)

    assert [warning.filename for warning in caught] == [__file__]
