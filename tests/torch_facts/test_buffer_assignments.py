"""What torch.export does with buffers that `forward` assigns; a test that fails here tells of a repair."""

from __future__ import annotations

import torch
from torch import nn

from fakexport._torch.buffer_assignments import buffer_assignments_ignored


class Counts(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, x):
        self.calls = self.calls + 1
        return x * self.calls


class Holds(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = Counts()

    def forward(self, x):
        return self.inner(x)


class Registers(nn.Module):
    def forward(self, x):
        self.register_buffer("table", torch.full((4,), 3.0))
        return x * self.table


def writes(program):
    return [node for node in program.graph.nodes if node.target is torch.ops.aten.copy_.default]


def test_a_buffer_of_the_outermost_module_is_written():
    assert len(writes(torch.export.export(Counts(), (torch.ones(4),)))) == 1


def test_that_of_another_module_is_not():
    program = torch.export.export(Holds(), (torch.ones(4),)).module()

    assert [program(torch.ones(4))[0].item() for _ in range(2)] == [1, 1]


def test_for_one_that_is_registered_in_forward_the_input_is_overwritten():
    program = torch.export.export(Registers(), (torch.ones(4),)).module()

    program(x := torch.ones(4))

    assert x.tolist() == [3.0] * 4


def test_nothing_is_written_for_those_that_are_ignored():
    with buffer_assignments_ignored():
        assert writes(torch.export.export(Counts(), (torch.ones(4),))) == []
        assert writes(torch.export.export(Registers(), (torch.ones(4),))) == []
