"""What torch's layers note down for themselves is not a finding; what a model notes down is."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import fakexport as fe

# torch's own: of what its LSTM notes down, and of a wheel without cuDNN.
pytestmark = [
    pytest.mark.filterwarnings("ignore:The tensor attributes:UserWarning"),
    pytest.mark.filterwarnings("ignore:PyTorch was compiled without cuDNN:UserWarning"),
]


class CountingLSTM(nn.LSTM):
    def forward(self, x):
        self.calls = getattr(self, "calls", 0) + 1
        return super().forward(x)


@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU, nn.RNN])
def test_a_recurrent_layer_gives_no_findings(kind):
    report = fe.check(lambda: (kind(4, 5).eval(), (torch.ones(3, 2, 4),)), target=["cpu", "H100"])

    assert report.diagnostics == ()


def test_an_attribute_of_a_subclass_is_reported_alone():
    report = fe.check(lambda: (CountingLSTM(4, 5).eval(), (torch.ones(3, 2, 4),)))

    (found,) = report.diagnostics
    assert found.code == "FE903"
    assert "calls" in str(found)
