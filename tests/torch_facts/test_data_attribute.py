"""A trace of torch does not see `.data`: what it returns is a constant, and what is assigned is ignored."""

from __future__ import annotations

import pytest
import torch

from fakexport._torch.data_attribute import DATA_ASSIGNED, data_attribute_traced

X = torch.arange(6.0).reshape(3, 2)


class Reads(torch.nn.Module):
    def forward(self, x):
        return x.data * 2


class Assigns(torch.nn.Module):
    def forward(self, x):
        y = x * 1
        y.data = x * 3
        return y


def test_stock_does_not_export_what_is_read():
    with pytest.raises(RuntimeError, match=r"not tracked with proxy|fake tensor in the exported program"):
        torch.export.export(Reads(), (X,))


def test_stock_ignores_what_is_assigned():
    """When this fails, assigning needs no refusal any more."""
    assert torch.equal(torch.export.export(Assigns(), (X,)).module()(X), X)
    assert torch.equal(Assigns()(X), 3 * X)


def test_what_is_read_is_traced():
    with data_attribute_traced():
        program = torch.export.export(Reads(), (X,))

    assert torch.equal(program.module()(X + 1), 2 * (X + 1))


def test_an_assignment_is_refused():
    with data_attribute_traced(), pytest.raises(RuntimeError, match=DATA_ASSIGNED):
        torch.export.export(Assigns(), (X,))


def test_outside_of_a_trace_nothing_changes():
    with data_attribute_traced(), torch._subclasses.FakeTensorMode() as mode:
        fake = mode.from_tensor(X)
        fake.data = torch.ones(5)

    assert fake.shape == (5,)
