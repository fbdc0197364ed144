"""How far a trace is: which blocks are counted, and that counting changes nothing."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import fakexport as fe
from fakexport.exporting.capture import TracedBlocks


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(4, 4)

    def forward(self, x):
        return self.inner(x).relu()


class Stage(nn.Module):
    """Blocks in a block, as in a hierarchical vision model."""

    def __init__(self, depth):
        super().__init__()
        self.blocks = nn.ModuleList([Block() for _ in range(depth)])

    def forward(self, x):
        for block in self.blocks:
            x = block(x)
        return x


@pytest.mark.parametrize(
    ("model", "total"),
    [
        (nn.Linear(4, 4), 0),
        (nn.Sequential(nn.Linear(4, 4), nn.ReLU()), 0),
        (nn.Sequential(*[Block() for _ in range(9)]), 9),
        (nn.ModuleList([Stage(2), Stage(6)]), 8),
        (nn.Sequential(*[Stage(3) for _ in range(8)]), 8),
        (nn.Sequential(nn.Sequential(Block(), Block()), Block()), 3),
    ],
)
def test_blocks_are_what_lists_hold_finer_where_there_are_few(model, total):
    assert TracedBlocks(model).total == total


def test_each_traced_block_is_counted():
    model = nn.Sequential(*[Block() for _ in range(9)])
    blocks, seen = TracedBlocks(model), []

    class Watched(nn.Module):
        def __init__(self):
            super().__init__()
            self.model = model

        def forward(self, x):
            for block in self.model:
                seen.append((blocks.done, blocks.total))
                x = block(x)
            return x

    with blocks.counted():
        torch.export.export(Watched(), (torch.ones(2, 4),))

    assert seen[:9] == [(done, 9) for done in range(9)]
    assert blocks.done == 9


def test_the_module_that_is_traced_is_named():
    seen = []
    model = nn.ModuleDict({"stage": nn.Sequential(nn.Linear(4, 4), nn.ReLU())})

    class Called(nn.Module):
        def __init__(self):
            super().__init__()
            self.parts = model

        def forward(self, x):
            return self.parts["stage"](x)

    called = Called()
    with TracedBlocks(called, lambda done, module: seen.append(module)).counted():
        torch.export.export(called, (torch.ones(2, 4),))

    inside = ["parts.stage", "parts.stage.0", "parts.stage", "parts.stage.1", "parts.stage"]
    assert [name for name in seen if name.startswith("parts")] == inside


def test_a_check_counts_blocks_for_who_watches_and_the_program_is_the_same(tmp_path):
    steps = []

    def factory():
        return Stage(9), (torch.ones(2, 4),)

    watched = fe.check(factory, target=["H100"], on_progress=steps.append)
    alone = fe.check(factory, target=["H100"])
    for name, report in (("watched", watched), ("alone", alone)):
        fe.save(report.verdicts[0].program, tmp_path / f"{name}.pt2")

    counted = [(step.step, step.blocks.done, step.blocks.total) for step in steps if step.blocks is not None]
    assert counted == [("trace", 9, 9)]
    assert (tmp_path / "watched.pt2").read_bytes() == (tmp_path / "alone.pt2").read_bytes()


def test_a_strict_trace_counts_no_blocks():
    steps = []

    fe.check(lambda: (Stage(9), (torch.ones(2, 4),)), strict=True, on_progress=steps.append)

    assert [step.blocks for step in steps] == [None] * len(steps)
