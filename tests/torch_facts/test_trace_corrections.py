"""What `trace_corrections` relies on: stock torch still does the wrong thing, and ours does not."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from fakexport._torch.emulation.fake_tensors import FakeTensor, new_fake_mode
from fakexport._torch.tracing.trace_corrections import (
    DATA_ASSIGNED,
    UNKNOWN_BROADCAST,
    buffer_assignments_ignored,
    corrected_traces,
)

X = torch.arange(6.0).reshape(3, 2)


def exported(model, *args):
    with corrected_traces():
        return torch.export.export(model, args)


class Box:
    def __init__(self):
        self.tensor = torch.zeros(3, 2)


class WritesToBox(nn.Module):
    def __init__(self):
        super().__init__()
        self.box = Box()

    def forward(self, x):
        return self.box.tensor.copy_(x) + 1


def fakes():
    with new_fake_mode():
        return WritesToBox(), torch.ones(3, 2)


def test_a_fake_of_another_mode_that_an_operator_returns_joins_the_trace():
    real = torch.export.export(WritesToBox(), (X,))
    model, x = fakes()
    with pytest.raises(AssertionError, match="fake mode"):
        torch.export.export(model, (x,))

    program = exported(*fakes())

    values = [node.meta.get("val") for node in program.graph.nodes]
    assert len({id(value.fake_mode) for value in values if isinstance(value, FakeTensor)}) == 1
    assert str(program.graph) == str(real.graph)
    assert program.graph_signature == real.graph_signature


class ReadsData(nn.Module):
    def forward(self, x):
        return x.data * 2


class AssignsData(nn.Module):
    def forward(self, x):
        y = x * 1
        y.data = x * 3
        return y


def test_data_that_are_read_are_traced():
    with pytest.raises(RuntimeError, match=r"not tracked with proxy|fake tensor in the exported program"):
        torch.export.export(ReadsData(), (X,))

    assert torch.equal(exported(ReadsData(), X).module()(X + 1), 2 * (X + 1))


def test_an_assignment_of_data_which_stock_ignores_is_refused():
    assert torch.equal(torch.export.export(AssignsData(), (X,)).module()(X), X)
    assert torch.equal(AssignsData()(X), 3 * X)

    with pytest.raises(RuntimeError, match=DATA_ASSIGNED):
        exported(AssignsData(), X)


def test_outside_of_a_trace_data_may_be_assigned():
    with corrected_traces(), new_fake_mode() as mode:
        fake = mode.from_tensor(X)
        fake.data = torch.ones(5)

    assert fake.shape == (5,)


class Rows(nn.Module):
    def __init__(self, combine, check=lambda rows: None):
        super().__init__()
        self.combine, self.check = combine, check

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


def has_some(rows):
    torch._check(rows.shape[0] > 0)


@pytest.mark.parametrize("combine", BROADCASTS.values(), ids=list(BROADCASTS))
def test_a_broadcast_of_unknown_size_is_refused_and_one_of_a_known_size_is_not(combine):
    stock = torch.export.export(Rows(combine), (THREE,)).module()
    with pytest.raises(RuntimeError, match="Runtime assertion failed"):
        stock(THREE)

    for check in (lambda rows: None, lambda rows: torch._check(rows.shape[0] != 0)):
        with pytest.raises(RuntimeError, match=UNKNOWN_BROADCAST):
            exported(Rows(combine, check), THREE)
    assert torch.equal(exported(Rows(combine, has_some), THREE).module()(THREE), combine(THREE.nonzero()))


def test_a_row_next_to_a_known_number_of_others_is_refused_too():
    def combine(rows):
        return rows[:1] + torch.ones(5, 1)

    with pytest.raises(RuntimeError, match=UNKNOWN_BROADCAST):
        exported(Rows(combine), THREE)
    assert exported(Rows(combine, has_some), THREE).module()(THREE).shape == (5, 1)


class Joined(nn.Module):
    def forward(self, mask, other):
        return torch.cat([mask.nonzero()[:1], other.nonzero()], dim=1)


def test_sizes_that_have_to_be_equal_and_slices_of_more_rows_are_left_alone():
    one = torch.tensor([False, True, False, False])
    checked = Rows(lambda rows: rows * 2, lambda rows: torch._check(rows.shape[0] == rows[:1].shape[0]))
    five = Rows(lambda rows: rows[:5] - rows)

    assert exported(Joined(), THREE, one).module()(THREE, one).tolist() == [[0, 1]]
    assert exported(checked, THREE).module()(one).tolist() == [[2]]
    assert exported(five, THREE).module()(THREE).tolist() == [[0]] * 3


class Counts(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, x):
        self.calls = self.calls + 1
        return x * self.calls


class Registers(nn.Module):
    def forward(self, x):
        self.register_buffer("table", torch.full((4,), 3.0))
        return x * self.table


def writes(model):
    program = torch.export.export(model, (torch.ones(4),))
    return [node for node in program.graph.nodes if node.target is torch.ops.aten.copy_.default]


def test_stock_writes_assigned_buffers_of_the_root_only_and_overwrites_an_input():
    assert len(writes(Counts())) == 1
    inner = torch.export.export(nn.Sequential(Counts()), (torch.ones(4),)).module()
    assert [inner(torch.ones(4))[0].item() for _ in range(2)] == [1, 1]
    registers = torch.export.export(Registers(), (torch.ones(4),)).module()
    registers(x := torch.ones(4))
    assert x.tolist() == [3.0] * 4

    with buffer_assignments_ignored():
        assert writes(Counts()) == writes(Registers()) == []
