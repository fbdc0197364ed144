"""What `_torch/unknown_broadcasts.py` relies on."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from fakexport._torch.unknown_broadcasts import UNKNOWN_BROADCAST, unknown_broadcasts_refused


class Rows(nn.Module):
    def __init__(self, combine, check=lambda rows: None):
        super().__init__()
        self.combine = combine
        self.check = check

    def forward(self, mask):
        rows = mask.nonzero()
        self.check(rows)
        return self.combine(rows)


BROADCASTS = {
    "first": lambda rows: rows - rows[:1],
    "last": lambda rows: rows - rows[-1:],
    "where": lambda rows: torch.where(rows > 1, rows, rows[:1]),
    "expand": lambda rows: rows[:1].expand(rows.shape[0], 1),
    "broadcast_tensors": lambda rows: torch.broadcast_tensors(rows[:1], rows)[0],
    "masked_fill": lambda rows: rows.masked_fill(rows[:1] > 0, 1),
    "lerp": lambda rows: torch.lerp(rows.float(), rows[:1].float(), 0.5),
}
THREE = torch.tensor([True, False, True, True])
some, not_none = (
    lambda rows: torch._check(rows.shape[0] > 0),
    lambda rows: torch._check(rows.shape[0] != 0),
)


def exported(model, *args):
    with unknown_broadcasts_refused():
        return torch.export.export(model, args or (THREE,))


@pytest.mark.parametrize("name", BROADCASTS)
def test_stock_writes_a_program_that_refuses_what_eager_mode_takes(name):
    model = Rows(BROADCASTS[name])
    model(THREE)

    program = torch.export.export(model, (THREE,)).module()

    with pytest.raises(RuntimeError, match="Runtime assertion failed"):
        program(THREE)


@pytest.mark.parametrize("check", [lambda rows: None, not_none], ids=["unchecked", "not 0"])
@pytest.mark.parametrize("name", BROADCASTS)
def test_it_is_refused(name, check):
    with pytest.raises(RuntimeError, match=UNKNOWN_BROADCAST):
        exported(Rows(BROADCASTS[name], check))


@pytest.mark.parametrize("name", BROADCASTS)
def test_a_size_that_is_known_to_be_one_is_broadcast(name):
    model = Rows(BROADCASTS[name], some)

    program = exported(model).module()

    assert torch.equal(program(THREE), model(THREE))


class Joined(nn.Module):
    def forward(self, mask, other):
        return torch.cat([mask.nonzero()[:1], other.nonzero()], dim=1)


class Checked(nn.Module):
    def forward(self, mask):
        rows = mask.nonzero()
        torch._check(rows.shape[0] == rows[:1].shape[0])
        return rows * 2


def test_sizes_that_have_to_be_equal_are_left_alone():
    one = torch.tensor([False, True, False, False])

    joined, checked = exported(Joined(), THREE, one).module(), exported(Checked()).module()

    assert joined(THREE, one).tolist() == [[0, 1]]
    assert checked(one).tolist() == [[2]]


def test_a_size_of_five_at_most_that_is_compared_is_left_alone():
    five = Rows(lambda rows: rows[:5] - rows)

    assert exported(five).module()(THREE).tolist() == [[0]] * 3


def test_a_row_next_to_a_known_number_of_others_is_the_same():
    def combine(rows):
        return rows[:1] + torch.ones(5, 1)

    with pytest.raises(RuntimeError, match="must match the size"):
        torch.export.export(Rows(combine), (THREE,))
    with pytest.raises(RuntimeError, match=UNKNOWN_BROADCAST):
        exported(Rows(combine))
    assert exported(Rows(combine, some)).module()(THREE).shape == (5, 1)
