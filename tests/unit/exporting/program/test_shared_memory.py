"""Inputs that a program writes into, and outputs that are views."""

import pytest
import torch
from torch import nn

from fakexport.exporting.capture import export
from fakexport.exporting.program import shared_outputs, walk, written_inputs


class Of(nn.Module):
    """The function as a module with a weight and a buffer."""

    def __init__(self, function):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(2, 3))
        self.register_buffer("total", torch.zeros(2, 3))
        self.function = function

    def forward(self, x):
        return self.function(self, x)


def program(function, **options):
    return export(lambda: (Of(function), (torch.ones(2, 3),)), **options)


def add_to_view(module, x):
    x[0].mul_(2)
    return x.sum()


def add_to_copy(module, x):
    y = x.clone()
    y.add_(1)
    module.total.add_(x)
    return y * module.total


@pytest.mark.parametrize(
    ("function", "expected"),
    [
        (lambda module, x: x.add_(1).sum(), [("x", "aten.add_.Tensor")]),
        (add_to_view, [("x", "aten.mul_.Tensor")]),
        (add_to_copy, []),
        (lambda module, x: torch.add(x, 1, out=None), []),
    ],
)
@pytest.mark.parametrize("topology", ["cpu", "H100"])
def test_writes_into_inputs(function, expected, topology):
    made = program(function, target=topology)
    found = written_inputs(made, walk(made))

    assert [(name, visit.operator) for name, visit in found] == expected


@pytest.mark.parametrize(
    ("function", "expected"),
    [
        (lambda module, x: x.add_(1), [("output", "`x`")]),
        (lambda module, x: {"a": x + 1, "b": x.mul_(2)[0]}, [("b", "`x`")]),
        (lambda module, x: (x, x[0], x.t()), []),
        (lambda module, x: module.weight, [("output", "`weight`")]),
        (lambda module, x: module.total.view(-1), [("output", "`total`")]),
        (lambda module, x: (y := x + 1, y.t()), [("1", "the output `0`")]),
        (lambda module, x: (y := x + 1, y), [("1", "the output `0`")]),
        (lambda module, x: (x + 1, x * 1, x.clone(), 3, None), []),
    ],
)
@pytest.mark.parametrize("topology", ["cpu", "H100"])
def test_outputs_in_the_memory_of_something_else(function, expected, topology):
    made = program(function, target=topology)
    found = shared_outputs(made, {name for name, _ in written_inputs(made, walk(made))})

    assert [(name, other) for name, other, _ in found] == expected
