"""A program keeps the state that a model keeps in its buffers, also where `forward` assigns them."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

import fakexport as fe
from tests.unit.exporting.capture.memo_models import exported_both_ways

X = torch.arange(16.0).reshape(4, 4) / 7


class Mean(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("mean", torch.zeros(4))
        self.register_buffer("last", torch.ones(4))

    def forward(self, x):
        self.mean = 0.9 * self.mean + 0.1 * x.mean(0)
        return x - self.mean


class Swaps(Mean):
    def forward(self, x):
        self.mean, self.last = self.last, self.mean
        return x + self.mean


class ReturnsTheOld(Mean):
    def forward(self, x):
        old = self.mean
        self.mean = old + 1
        return old, x + self.mean


class ReturnsAView(Mean):
    def forward(self, x):
        old = self.mean[:2]
        self.mean = self.mean + 1
        return old, x + self.mean


class AssignsTwice(Mean):
    def forward(self, x):
        self.mean = self.mean + 1
        x = x * self.mean
        self.mean = self.mean * 2
        return x


class ReturnsSparse(Mean):
    def forward(self, x):
        self.mean = self.mean + 1
        return (x + self.mean).to_sparse().coalesce().to_dense(), self.mean


class Increments(Mean):
    def forward(self, x):
        self.mean += 1
        return x * self.mean


class OnlyKeeps(Mean):
    def forward(self, x):
        x = x + self.mean
        self.mean = x[0]
        return x


class TakesIt(Mean):
    def forward(self, x):
        x = x * self.mean
        self.mean = x.clone()[0]
        self.mean.add_(1)
        return x


class Outer(nn.Module):
    def __init__(self, inner):
        super().__init__()
        self.layers = nn.ModuleList([inner])

    def forward(self, x):
        return self.layers[0](x)


KINDS = [
    Mean,
    Swaps,
    ReturnsTheOld,
    ReturnsAView,
    AssignsTwice,
    OnlyKeeps,
    TakesIt,
    ReturnsSparse,
    Increments,
]


def calls_of(make):
    """What three calls return, and leave, in the program and in eager mode."""
    model = make()
    program = fe.bind(fe.export(lambda: (make(), (X.clone(),))), copy.deepcopy(model.state_dict())).module()
    with torch.no_grad():
        for each in (program, model):
            results = [each(X + turn) for turn in range(3)]
            yield results, {name: tensor.clone() for name, tensor in each.named_buffers()}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("is_inner", [False, True])
def test_the_program_counts_like_eager_mode(kind, is_inner):
    make = (lambda: Outer(kind())) if is_inner else kind

    (results, left), (expected, held) = calls_of(make)

    torch.testing.assert_close(results, expected)
    torch.testing.assert_close(left, held)


def test_an_assigned_buffer_of_each_block_is_written_and_no_finding():
    def make():
        return nn.Sequential(*(Mean() for _ in range(6))), (X.clone(),)

    assert fe.check(make).diagnostics == ()
    nodes = [
        node for node in exported_both_ways(make).graph.nodes if node.target is torch.ops.aten.copy_.default
    ]
    assert len(nodes) == 6


class Registers(nn.Module):
    def forward(self, x):
        self.register_buffer("table", torch.full((4, 4), 3.0), persistent=False)
        return x * self.table


class Grows(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("table", torch.zeros(2, 4))

    def forward(self, x):
        self.table = torch.full((x.shape[0], 4), 2.0)
        return x * self.table


class Exchanges(nn.Module):
    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(torch.ones(4))

    def forward(self, x):
        self.scale = nn.Parameter(self.scale * 2)
        return x * self.scale


class Aliases(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("mean", torch.zeros(4))
        self.register_buffer("start", self.mean)

    def forward(self, x):
        self.mean = self.mean + 1
        return x + self.mean - self.start


class TurnsSparse(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("mean", torch.zeros(4))

    def forward(self, x):
        self.mean = x.mean(0).to_sparse()
        return x + self.mean.to_dense()


class HoldsTwice(nn.Module):
    def __init__(self):
        super().__init__()
        self.one = self.other = Mean()

    def forward(self, x):
        return self.one(x)


@pytest.mark.parametrize("kind", [Registers, Grows, TurnsSparse])
@pytest.mark.parametrize("is_inner", [False, True])
def test_what_cannot_be_written_is_said_and_leaves_the_inputs_alone(kind, is_inner):
    def make():
        model = kind()
        return Outer(model) if is_inner else model, (X.clone(),)

    found, *others = fe.check(make).diagnostics
    model, (x,) = make()
    program = fe.bind(fe.export(make), model.state_dict()).module()

    assert found.code == "FE903"
    assert [each.code for each in others] == ["FE406"] * (kind is TurnsSparse)
    assert found.primary.span.function == "forward"
    with torch.no_grad():
        torch.testing.assert_close(program(x), model(X))
    assert torch.equal(x, X)


@pytest.mark.parametrize("kind", [Exchanges, Aliases, HoldsTwice])
@pytest.mark.parametrize("is_inner", [False, True])
def test_what_is_read_and_cannot_be_written_is_refused(kind, is_inner):
    (found,) = fe.check(lambda: (Outer(kind()) if is_inner else kind(), (X,))).diagnostics

    assert found.code == "FE912"
    assert found.primary.span.function == "forward"
