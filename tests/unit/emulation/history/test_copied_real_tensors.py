"""`copy.deepcopy` of real tensors while a model is built."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

import fakexport as fe
from fakexport.emulation.history import constant_value

TABLE = torch.arange(6.0).view(2, 3)
LAYER = nn.Linear(3, 3)


class Copies(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("table", copy.deepcopy(TABLE), persistent=False)
        self.register_buffer("turned", copy.deepcopy(TABLE.t()), persistent=False)
        self.layer = copy.deepcopy(LAYER)

    def forward(self, x):
        return self.layer(x) + self.table + self.turned.t()


@pytest.mark.parametrize("topology", ["cpu", "H100"])
def test_the_copy_is_a_fake_with_the_value(topology):
    program = fe.export(Copies, (torch.ones(2, 3),), target=topology)

    assert torch.equal(constant_value(program.constants["table"]), TABLE)
    assert program.constants["turned"].stride() == (1, 3)


def test_a_bound_program_gives_what_eager_gives():
    eager = Copies()
    program = fe.export(Copies, (torch.ones(2, 3),))

    bound = fe.bind(program, dict(eager.state_dict()))

    assert torch.equal(bound.module()(TABLE), eager(TABLE))


def test_one_copy_stands_for_one_tensor_and_torch_is_whole_afterwards():
    with fe.fake_mode():
        first, second = copy.deepcopy([TABLE, TABLE])

    assert first is second
    assert fe.is_fake(first)
    assert torch.equal(copy.deepcopy(TABLE), TABLE)
