"""What `_torch/trace_end.py` relies on."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.export import Dim

from fakexport._torch.trace_end import TraceFinished, ended_after_trace


def test_an_export_ends_after_its_trace():
    with ended_after_trace(), pytest.raises(TraceFinished):
        torch.export.export(nn.Linear(2, 3), (torch.ones(1, 2),))


def test_declared_dimensions_are_checked_before():
    class OneSize(nn.Module):
        def forward(self, x):
            return x.reshape(4, 2)

    with ended_after_trace(), pytest.raises(torch._dynamo.exc.UserError, match="Constraints violated"):
        torch.export.export(OneSize(), (torch.ones(4, 2),), dynamic_shapes=({0: Dim.DYNAMIC},))


def test_torch_is_whole_after_an_ended_export():
    with ended_after_trace(), pytest.raises(TraceFinished):
        torch.export.export(nn.Linear(2, 3), (torch.ones(1, 2),))

    program = torch.export.export(nn.Linear(2, 3), (torch.ones(1, 2),))

    assert program.module()(torch.ones(1, 2)).shape == (1, 3)
