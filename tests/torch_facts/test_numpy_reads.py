"""What `_torch/numpy_reads.py` relies on."""

from __future__ import annotations

import numpy
import pytest
import torch
from torch import nn

from fakexport._torch.numpy_reads import answered_numpy_reads


class Reads(nn.Module):
    def forward(self, x):
        return x * float(x.numpy().sum()) * float(numpy.asarray(x.bfloat16()).sum())


def test_both_ways_to_numpy_are_refused_here():
    errors = []

    with answered_numpy_reads(lambda error: not errors.append(str(error))):
        torch.export.export(Reads(), (torch.ones(2, 3),))

    assert len(errors) == 2
    assert "not supported for tensor subclasses" in errors[0]


def test_a_real_tensor_gives_its_own_data():
    with answered_numpy_reads(lambda error: True):
        assert torch.arange(3).numpy().tolist() == [0, 1, 2]


def test_without_leave_it_fails_as_stock():
    with pytest.raises(RuntimeError, match="tensor subclasses"), answered_numpy_reads(lambda error: False):
        torch.export.export(Reads(), (torch.ones(2, 3),))
