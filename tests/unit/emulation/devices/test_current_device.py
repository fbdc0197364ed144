"""`device="cuda"` is the current device of each moment, and a program has no current device."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import fakexport as fe

MADE = {
    "zeros": lambda x: torch.zeros(3, device="cuda"),
    "tensor": lambda x: torch.tensor([1.0, 2.0, 3.0], device="cuda"),
    "as_tensor": lambda x: torch.as_tensor([1.0, 2.0, 3.0], device=torch.device("cuda")),
    "new_zeros": lambda x: x.new_zeros(3, device="cuda"),
    "to": lambda x: torch.ones(3).to("cuda"),
}


class OnEach(nn.Module):
    """The same call on each of two devices, one after the other and back."""

    def __init__(self, make):
        super().__init__()
        self.make = make

    def forward(self, x):
        found = []
        for index in (0, 1, 0):
            with torch.cuda.device(index):
                found.append(self.make(x))
        return found


@pytest.mark.parametrize("dynamic", [None, ["x.0=2..64"]], ids=["static", "dynamic"])
@pytest.mark.parametrize("name", MADE)
def test_a_tensor_is_on_the_device_that_is_current_when_it_is_made(name, dynamic):
    x = torch.zeros(4, 3)

    program = fe.export(lambda: OnEach(MADE[name]), (x,), target="2xH100", dynamic_shapes=dynamic)

    (output,) = program.graph.find_nodes(op="output")
    devices = [str(node.meta["val"].device) for node in output.args[0]]
    assert devices == ["cuda:0", "cuda:1", "cuda:0"]


@pytest.mark.parametrize("name", ["zeros", "new_zeros", "to"])
def test_a_program_that_takes_the_current_device_is_reported_at_the_line(name):
    report = fe.check(lambda: OnEach(MADE[name]), (torch.zeros(4, 3),), target="2xH100")

    found = [each for each in report.diagnostics if each.code == "FE910"]
    assert len(found) == 1
    assert found[0].labels[0].message == "uses the current device, which was `cuda:1` during the trace"
    assert 'device="cuda:1"' in found[0].fix.message


def in_region(x):
    """The region is a graph of its own in the program."""
    with torch.cuda.device(1), torch.no_grad():
        return torch.zeros(3, device="cuda") * 2


def on_first(x):
    with torch.cuda.device(0):
        return torch.zeros(3, device="cuda") + x


def by_index(x):
    with torch.cuda.device(1):
        return torch.zeros(3, device=f"cuda:{torch.cuda.current_device()}")


@pytest.mark.parametrize(("forward", "reports"), [(in_region, 1), (on_first, 0), (by_index, 0)])
def test_only_a_device_that_is_not_the_first_and_not_named_is_reported(forward, reports):
    class Model(nn.Module):
        def forward(self, x):
            return forward(x), x + 1

    found = fe.check(Model, (torch.zeros(4, 3, requires_grad=True),), target="2xH100").diagnostics

    assert [each.code for each in found].count("FE910") == reports
