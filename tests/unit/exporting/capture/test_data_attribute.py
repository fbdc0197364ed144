"""Models that read or assign `.data`: the program does what eager mode does, or there is none."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

import fakexport as fe

X = torch.arange(12.0).reshape(3, 4) / 10


class Doubles(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(4, 4)

    def forward(self, x):
        self.linear.weight.data.mul_(2)
        return self.linear(x)


class Clamps(Doubles):
    def forward(self, x):
        return nn.functional.linear(x, self.linear.weight.data.clamp(-0.1, 0.1), self.linear.bias)


class AddsToItsInput(nn.Module):
    def forward(self, x):
        x.data.add_(1)
        return x * 2


@pytest.mark.parametrize("sizes", [[], ["x.0"]], ids=["static", "dynamic"])
@pytest.mark.parametrize("kind", [Doubles, Clamps, AddsToItsInput])
@torch.no_grad()
def test_what_is_read_from_data_is_part_of_the_program(kind, sizes):
    model = kind()
    eager = copy.deepcopy(model)
    exported = fe.export(lambda: (kind(), (X.clone(),)), dynamic_shapes=sizes)
    program = fe.bind(exported, model.state_dict()).module()

    for x in (X, 2 * X):  # Called twice: a weight that changes stays changed.
        assert torch.allclose(program(x.clone()), eager(x.clone()))


class AssignsToAWeight(Doubles):
    def forward(self, x):
        self.linear.weight.data = x.t() @ x
        return self.linear(x)


class AssignsToAValue(nn.Module):
    def forward(self, x):
        y = x * 1
        y.data = x * 3
        return y


class AssignsInTorch(Doubles):
    def forward(self, x):
        values = torch.cat([(x.t() @ x).flatten(), x[0]])
        nn.utils.vector_to_parameters(values, self.linear.parameters())
        return self.linear(x)


@pytest.mark.parametrize("kind", [AssignsToAWeight, AssignsToAValue, AssignsInTorch])
def test_what_is_assigned_is_refused_at_its_line(kind):
    (found,) = fe.check(lambda: (kind(), (X,))).diagnostics

    assert (found.code, found.severity) == ("FE202", "error")
    assert "assignments to `.data`" in found.notes[0]
    assert found.primary.span.function == "forward"
    assert "a new variable" in found.fix.message


def test_a_module_that_is_cast_is_still_a_finding_of_its_own():
    class Casts(Doubles):
        def forward(self, x):
            return self.linear.double()(x.double())

    (found,) = fe.check(lambda: (Casts(), (X,))).diagnostics

    assert found.code == "FE208"
