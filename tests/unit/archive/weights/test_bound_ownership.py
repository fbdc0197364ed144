"""A bound program owns what it writes, and shares what it only reads."""

from __future__ import annotations

import torch
from torch import nn

import fakexport as fe


class Counting(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(4, 4)
        self.register_buffer("count", torch.zeros(()))
        self.register_buffer("alias", self.count)
        self.register_buffer("seen", torch.zeros(3), persistent=False)

    def forward(self, x):
        self.count += 1
        self.seen[1:].add_(x.sum())
        return self.linear(x) * self.alias + self.seen.sum()


def test_a_run_changes_no_tensor_of_the_caller():
    eager, program = Counting(), fe.export(Counting, (torch.ones(2, 4),))
    weights = {name: tensor.detach().clone() for name, tensor in eager.state_dict().items()}

    first = fe.bind(program, weights).module()
    results = [first(torch.ones(2, 4)) for _ in range(2)]
    again = fe.bind(program, weights).module()(torch.ones(2, 4))

    assert weights["count"] == 0
    assert torch.equal(again, results[0])
    assert [torch.equal(result, eager(torch.ones(2, 4))) for result in results] == [True, True]


def test_what_is_only_read_is_not_copied():
    program = fe.export(Counting, (torch.ones(2, 4),))
    weights = {name: tensor.detach() for name, tensor in Counting().state_dict().items()}

    bound = fe.bind(program, weights)

    assert bound.state_dict["linear.weight"].data_ptr() == weights["linear.weight"].data_ptr()
    assert bound.state_dict["count"].data_ptr() != weights["count"].data_ptr()


def test_a_program_with_real_constants_is_left_as_it_is():
    program = torch.export.export(Counting(), (torch.ones(2, 4),))

    fe.bind(program, dict(Counting().state_dict())).module()(torch.ones(2, 4))

    assert torch.equal(program.constants["seen"], torch.zeros(3))
