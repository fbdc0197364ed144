"""A loop over unknown rows asks for them with `Tensor.__iter__`, which no fake tensor overrides."""

from __future__ import annotations

import pytest
import torch
from torch.fx.experimental.symbolic_shapes import GuardOnDataDependentSymNode

from fakexport._torch.iterated_tensors import iterated_tensors


class Loops(torch.nn.Module):
    def forward(self, x):
        total = x.sum() * 0
        for row in x:
            total = total + row.sum()
        for row in x.nonzero():
            total = total + row[0]
        return total


def test_stock_refuses_the_loop():
    with pytest.raises(GuardOnDataDependentSymNode):
        torch.export.export(Loops(), (torch.ones(2, 3),))


def test_rows_that_are_given_are_looped_over_and_known_ones_are_not_asked_for():
    asked = []

    def rows(tensor):
        asked.append(tuple(tensor.shape)[1:])
        return [[1], [5]]

    with iterated_tensors(rows):
        program = torch.export.export(Loops(), (torch.ones(2, 3),))

    assert asked == [(2,)]
    assert program.module()(torch.ones(2, 3)) == 6 + 1 + 5
