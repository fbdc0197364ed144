"""Models of equal blocks, captured with the memo of operators and as stock torch traces them."""

from __future__ import annotations

import logging
from unittest.mock import Mock

import pytest
import torch
from torch import nn

import fakexport as fe
from fakexport.emulation.devices import emulate
from fakexport.exporting.capture.capture import capture
from tests.identity import first_difference

DEPTH = 8
AUTO = ({0: torch.export.Dim.AUTO},)
INPUTS = (torch.ones(3, 8),)
X = torch.ones(4, 6)


class Block(nn.Module):
    def __init__(self, at=0):
        super().__init__()
        self.layer_idx = at
        self.norm = nn.LayerNorm(8)
        self.up = nn.Linear(8, 16)
        self.down = nn.Linear(16, 8)

    def forward(self, x):
        return x + self.down(torch.relu(self.up(self.norm(x))))


class Model(nn.Module):
    def __init__(self, blocks):
        super().__init__()
        self.blocks = nn.ModuleList(blocks)

    def forward(self, x):
        for block in self.blocks:
            x = block(x)
        return x


class Repeats(nn.Module):
    """Calls `step` eight times, with the number of the call."""

    def __init__(self, step, count=8):
        super().__init__()
        self.step = step
        self.count = count
        self.weight = nn.Parameter(torch.ones(6, 6))
        self.register_buffer("mean", torch.zeros(6))
        self.register_buffer("variance", torch.ones(6))

    def forward(self, x, *more):
        for at in range(self.count):
            x = self.step(self, x, at, *more)
        return x


def attends(model, x):
    q = x.view(1, 1, 4, 6)
    return nn.functional.scaled_dot_product_attention(q, q, q).view(4, 6)


def in_chunks(model, x, at):
    """Like linear attention: pad the rows to whole chunks of four, and write each row of a chunk in place."""
    rows = x.shape[1]
    padded = nn.functional.pad(x.view(x.shape[0], rows, 2, 3).transpose(1, 2), (0, 0, 0, -rows % 4))
    chunks = padded.reshape(x.shape[0], 2, -1, 4, 3)
    between = (chunks @ chunks.mT).tril(-1)
    for row in range(1, 4):
        between[..., row, :row] = between[..., row, :row].clone() + between[..., :row, :row].sum(-2)
    out = (between @ chunks).reshape(x.shape[0], 2, -1, 3)[:, :, :rows]
    return out.transpose(1, 2).reshape(x.shape[0], rows, 6)


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
            logger = logging.getLogger("fakexport.exporting.capture.capture")
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
