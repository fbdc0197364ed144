"""Constants of a GPU target that are drawn have the values of a model built on the CPU, or are FE602."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import fakexport as fe
from fakexport.history import value_of

X = torch.zeros(4)


class Draws(nn.Module):
    """Draws its constant after what `first` does."""

    def __init__(self, first):
        super().__init__()
        torch.manual_seed(0)
        first()
        self.register_buffer("noise", torch.randn(4), persistent=False)

    def forward(self, x):
        return x + self.noise


def seeded_between():
    torch.rand(7, device="cpu")
    torch.manual_seed(0)


def other_seed_between():
    torch.rand(7, device="cpu")
    torch.manual_seed(1)


def forked():
    with torch.random.fork_rng(devices=[]):
        torch.rand(7)


ONE_STREAM = {
    "nothing": lambda: None,
    "the default device": lambda: torch.rand(7),
    "a weight": lambda: nn.Linear(3, 3),
    "a generator": lambda: torch.rand(7, generator=torch.Generator().manual_seed(3)),
    "the meta device": lambda: torch.rand(7, device="meta"),
    "the CPU, and the seed again": seeded_between,
    "the CPU, and another seed": other_seed_between,
}
TWO_STREAMS = {
    "rand": lambda: torch.rand(7, device="cpu"),
    "randn": lambda: torch.randn(3, device="cpu"),
    "randperm": lambda: torch.randperm(5, device="cpu"),
    "randint": lambda: torch.randint(9, (5,), device=torch.device("cpu")),
    "in place": lambda: torch.empty(7, device="cpu").normal_(),
    "a weight": lambda: nn.Linear(3, 3, device="cpu"),
    "init": lambda: nn.init.kaiming_uniform_(torch.empty(3, 3, device="cpu")),
    "both": lambda: (torch.rand(7), torch.rand(7, device="cpu")),
    "a part": lambda: nn.Dropout()(torch.ones(4, device="cpu")),
}


def constant_for(first, target):
    report = fe.check(lambda: (Draws(first), (X,)), target=target)
    program = report.verdicts[0].program
    assert program is not None, str(report)
    return program.constants["noise"], [found.code for found in report.diagnostics]


@pytest.mark.parametrize("first", ONE_STREAM)
@pytest.mark.parametrize("target", ["cpu", "H100"])
def test_draws_of_one_device_are_those_of_eager_mode(first, target):
    expected = Draws(ONE_STREAM[first]).noise

    constant, codes = constant_for(ONE_STREAM[first], target)

    assert torch.equal(value_of(constant), expected)
    assert codes == []


@pytest.mark.parametrize("first", TWO_STREAMS)
def test_draws_of_two_devices_have_no_value(first):
    _, codes = constant_for(TWO_STREAMS[first], "H100")

    assert codes == ["FE602"]


@pytest.mark.parametrize("first", TWO_STREAMS)
def test_on_the_cpu_they_are_one_stream(first):
    expected = Draws(TWO_STREAMS[first]).noise

    constant, codes = constant_for(TWO_STREAMS[first], "cpu")

    assert torch.equal(value_of(constant), expected)
    assert codes == []


def test_a_forked_generator_is_never_a_wrong_value():
    expected = Draws(forked).noise

    constant, codes = constant_for(forked, "H100")

    assert codes == ["FE602"] or torch.equal(value_of(constant), expected)
