"""Tensors on different devices that fake mode accepts, although a GPU rejects them."""

from __future__ import annotations

import re

import pytest
import torch
from torch import nn
from torch.nn import functional

import fakexport as fe


class Computes(nn.Module):
    """A layer on the device of the target, and a filter on the CPU."""

    def __init__(self, step):
        super().__init__()
        self.step = step
        self.linear = nn.Linear(4, 4)
        self.filter = torch.ones(3, 3, 1, device="cpu")

    def forward(self, x):
        return self.step(self, self.linear(x))


@torch.no_grad()
def without_gradients(x):
    return x.take(torch.tensor(1))


REJECTED = {
    "a convolution with a weight on the CPU": lambda m, x: functional.conv1d(x[None], m.filter),
    "an index of one element": lambda m, x: x.index_select(0, torch.tensor(1)),
    "a token of one element": lambda m, x: functional.embedding(torch.tensor(1), m.linear.weight),
    "a number in a stack": lambda m, x: torch.stack([x.sum(), torch.tensor(1.0)]),
    "a bias of one element": lambda m, x: functional.linear(x, m.linear.weight, torch.tensor(1.0)),
    "a mask of one element": lambda m, x: x.masked_fill(torch.tensor(True), 0.0),
    "in a region without gradients": lambda m, x: without_gradients(x),
}
ACCEPTED = {
    "a number in arithmetic": lambda m, x: torch.multiply(torch.tensor(2.0), x) > torch.tensor(1.0),
    "a number that fills": lambda m, x: torch.where(x > 0, x, torch.tensor(0.0)).fill_(torch.tensor(1.0)),
    "an index on the CPU": lambda m, x: x[torch.arange(2)] + x[torch.tensor(1)],
    "a copy": lambda m, x: torch.empty_like(x).copy_(m.filter[0]),
}


def report_of(step):
    return fe.check(lambda: (Computes(step).eval(), (torch.zeros(3, 4),)), target="H100")


@pytest.mark.parametrize("step", REJECTED.values(), ids=REJECTED)
def test_devices_that_only_real_hardware_rejects(step):
    report = report_of(step)

    (found,) = report.diagnostics
    assert found.code == "FE502"
    assert found.labels[0].span.path == __file__
    assert {"on cuda:0", "on cpu"} <= set(re.findall(r"on [a-z:0]+", found.labels[0].message))
    assert not report.verdicts[0].is_exportable


@pytest.mark.parametrize("step", ACCEPTED.values(), ids=ACCEPTED)
def test_devices_that_real_hardware_accepts(step):
    report = report_of(step)

    assert report.verdicts[0].is_exportable, str(report)
    assert "FE502" not in {found.code for found in report.diagnostics}
