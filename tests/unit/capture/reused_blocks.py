"""Models of equal blocks, captured with reuse and without."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from fakexport.capture.capture import capture
from fakexport.devices import emulate
from fakexport.program import first_difference

DEPTH = 8
AUTO = ({0: torch.export.Dim.AUTO},)
INPUTS = (torch.ones(3, 8),)


class Block(nn.Module):
    def __init__(self, at=0):
        super().__init__()
        self.layer_idx = at
        self.norm = nn.LayerNorm(8)
        self.up = nn.Linear(8, 16)
        self.down = nn.Linear(16, 8)

    def forward(self, x):
        return x + self.down(torch.relu(self.up(self.norm(x))))


class StepBlock(nn.Module):
    """A block at a position, which ends in a step that tests choose."""

    def __init__(self, at, step):
        super().__init__()
        self.layer_idx = at
        self.up = nn.Linear(8, 8)
        self.step = step


class Model(nn.Module):
    def __init__(self, blocks):
        super().__init__()
        self.blocks = nn.ModuleList(blocks)

    def forward(self, x):
        for block in self.blocks:
            x = block(x)
        return x


def slow(*values):
    """The same cases, for `make test-slow`: each is a capture with reuse and one without."""
    return [pytest.param(value, marks=pytest.mark.slow) for value in values]


def both_ways(module, args=INPUTS, dynamic=None, prepare=lambda: None, target="cpu"):
    """What the captures with and without reuse are."""
    found = []
    for reuse in (True, False):
        prepare()
        with emulate(target):
            found.append(capture(module, args, dynamic=dynamic, reuse=reuse))
    return found


def check(*args, **kwargs):
    """Compare the programs, and return the one with reuse."""
    with_reuse, without = both_ways(*args, **kwargs)
    for captured in (with_reuse, without):
        assert captured.program is not None, captured.failure
    assert first_difference(with_reuse.program, without.program) is None
    return with_reuse.program


def check_outcome(*args, **kwargs):
    """Compare the programs, or the failures if neither way gives one."""
    with_reuse, without = both_ways(*args, **kwargs)
    if with_reuse.program is None or without.program is None:
        assert str(with_reuse.failure) == str(without.failure)
    else:
        assert first_difference(with_reuse.program, without.program) is None
