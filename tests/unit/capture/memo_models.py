"""Models of equal blocks, captured with the memo of operators and as stock torch traces them."""

from __future__ import annotations

import logging
from unittest.mock import Mock

import pytest
import torch
from torch import nn

import fakexport as fe
from fakexport.capture.capture import capture
from fakexport.devices import emulate
from tests.identity import first_difference

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
    """The same cases, for `make test-slow`: each is captured twice."""
    return [pytest.param(value, marks=pytest.mark.slow) for value in values]


def both_ways(module, args=INPUTS, dynamic=None, prepare=lambda: None, target="cpu"):
    """Capture with the memo, and with every fast path off."""
    found = []
    for switch in ("1", "0"):
        prepare()
        with pytest.MonkeyPatch.context() as patch, emulate(target):
            patch.setenv("FAKEXPORT_SPEED", switch)
            logger = logging.getLogger("fakexport.capture.capture")
            log = Mock(wraps=logger.debug)
            patch.setattr(logger, "debug", log)
            found.append(capture(module, args, dynamic=dynamic))
        failures = [call.args for call in log.mock_calls if call.args[0].startswith("the trace failed")]
        assert found[-1].program is None or not failures, failures
    return found


def check(*args, **kwargs):
    """Compare the programs, and return the one that was made with the memo."""
    quick, stock = both_ways(*args, **kwargs)
    for captured in (quick, stock):
        assert captured.program is not None, captured.failure
    assert first_difference(quick.program, stock.program) is None
    return quick.program


def check_outcome(*args, **kwargs):
    """Compare the programs, or the failures if neither way makes one."""
    quick, stock = both_ways(*args, **kwargs)
    if quick.program is None or stock.program is None:
        assert str(quick.failure) == str(stock.failure)
    else:
        assert first_difference(quick.program, stock.program) is None


def exported_both_ways(source, **options):
    """Compare `fakexport.export` with the memo and without any fast path; return the program with it."""
    programs = []
    for switch in ("1", "0"):
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("FAKEXPORT_SPEED", switch)
            programs.append(fe.export(source, **options))
    assert first_difference(*programs) is None
    return programs[0]
