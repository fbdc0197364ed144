"""A table of positions bounds a size: eager mode runs at the bound, and raises an index error beyond it."""

import pytest
import torch
from torch import nn

import fakexport as fe
from fakexport.planning.memory import BeyondTable, ProgramSizes, SizeRequest

ROWS = 24


class Positions(nn.Module):
    """Adds a row of a table to each token."""

    def __init__(self, positions):
        super().__init__()
        self.tokens, self.table = nn.Embedding(8, 4), nn.Embedding(ROWS, 4)
        self.positions = positions

    def forward(self, input_ids):
        return self.tokens(input_ids) + self.table(self.positions(input_ids))


def counted(ids):
    return torch.arange(ids.shape[1], device=ids.device).unsqueeze(0)


def from_two(ids):
    return torch.arange(2, ids.shape[1] + 2).expand(ids.shape[0], -1)


def after_padding(ids):
    """As RoBERTa counts them: padding stays at 1."""
    mask = ids.ne(1).int()
    return (torch.cumsum(mask, dim=1).type_as(mask) * mask).long() + 1


def wrapped(ids):
    return counted(ids) % ROWS


def at_most(ids):
    return counted(ids).clamp(max=ROWS - 1)


def backwards(ids):
    return ids.shape[1] - counted(ids)


def program_of(positions):
    ids = torch.zeros(2, 8, dtype=torch.long)
    return fe.export(lambda: (Positions(positions), (ids,)), dynamic_shapes="auto")


@pytest.mark.parametrize("positions", [counted, from_two, after_padding])
def test_the_bound_is_the_last_size_that_runs(positions):
    sizes = ProgramSizes(program_of(positions))

    most = sizes.greatest("context")

    model = Positions(positions)
    model(torch.zeros(2, most, dtype=torch.long))
    with pytest.raises(IndexError):
        model(torch.zeros(2, most + 1, dtype=torch.long))
    assert sizes.chosen(SizeRequest(context=most)).context == most
    with pytest.raises(
        BeyondTable, match=rf"read row 24 \(counted from 0\) of table.weight, which has only {ROWS} rows"
    ):
        sizes.chosen(SizeRequest(context=most + 1))


def test_a_mask_counts_positions_as_well():
    """As OPT counts them, and takes those of the new tokens."""

    class Masked(Positions):
        def forward(self, input_ids, attention_mask):
            counted = (attention_mask.cumsum(1) * attention_mask - 1).long()[:, -input_ids.shape[1] :]
            return self.tokens(input_ids) + self.table(counted + 2)

    def inputs(length):
        return {name: torch.ones(2, length, dtype=torch.long) for name in ("input_ids", "attention_mask")}

    program = fe.export(lambda: (Masked(None), (), inputs(8)), dynamic_shapes="auto")

    assert ProgramSizes(program).greatest("context") == ROWS - 2
    Masked(None)(**inputs(ROWS - 2))
    with pytest.raises(IndexError):
        Masked(None)(**inputs(ROWS - 1))


@pytest.mark.parametrize("positions", [wrapped, at_most, backwards])
def test_what_is_not_surely_beyond_is_not_refused(positions):
    sizes = ProgramSizes(program_of(positions))

    assert sizes.greatest("context") is None
    assert sizes.chosen(SizeRequest(context=100)).context == 100


@pytest.mark.parametrize("options", [{"workload": "train"}, {"eager": True}])
def test_runs_on_fakes_refuse_it_as_well(options):
    def factory():
        model = Positions(counted)
        model.pos_table, model.table = model.table, None
        model.forward = lambda input_ids: model.tokens(input_ids) + model.pos_table(counted(input_ids))
        return model, (torch.zeros(2, 8, dtype=torch.long),)

    fe.plan(factory, target="H100", context=ROWS, **options)
    with pytest.raises(fe.InvalidValue, match="25 positions in pos_table, which has only 24 rows"):
        fe.plan(factory, target="H100", context=ROWS + 1, **options)
