"""What `switch` promises: without the fast paths a capture runs torch's own passes."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.fx.experimental import proxy_tensor

from fakexport._torch.speed.switch import has_memo, is_fast
from fakexport.exporting.capture.capture import capture


@pytest.mark.parametrize(("value", "expected"), [("0", False), ("1", True), (None, True)])
def test_the_switch_is_an_environment_variable(monkeypatch, value, expected):
    monkeypatch.delenv("FAKEXPORT_SPEED", raising=False)
    if value is not None:
        monkeypatch.setenv("FAKEXPORT_SPEED", value)

    assert is_fast() is expected


@pytest.mark.parametrize(
    ("version", "expected"),
    [("2.13.0+cpu", True), ("2.15.0", True), ("2.11.0+cu130", False), ("2.16.0", False), ("2.130.0", False)],
)
def test_the_memo_is_on_where_its_facts_were_tested(monkeypatch, version, expected):
    monkeypatch.delenv("FAKEXPORT_SPEED", raising=False)
    monkeypatch.setattr(torch, "__version__", version)

    assert has_memo() is expected


@pytest.mark.parametrize("value", ["0", "1"])
def test_a_slow_capture_asks_each_value_for_its_metadata(monkeypatch, value):
    asked = []
    stock = proxy_tensor._extract_tensor_metadata
    monkeypatch.setattr(
        proxy_tensor, "_extract_tensor_metadata", lambda result: (asked.append(result), stock(result))[1]
    )
    monkeypatch.setenv("FAKEXPORT_SPEED", value)

    program = capture(nn.Sequential(*[nn.ReLU() for _ in range(6)]), (torch.ones(2),)).program

    assert program is not None
    assert (len(asked) >= 6) is (value == "0")
