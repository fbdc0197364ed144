"""Fixes of FE202 that torch's message does not name: each works when followed."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

import fakexport as fe

X = torch.linspace(-1, 1, 12).reshape(3, 4)


class Counts(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("kept", torch.zeros(4))


class WritesInBranch(Counts):
    def forward(self, x):
        def more(x):
            self.kept.add_(1)
            return x + self.kept

        return torch.cond(x.sum() > 0, more, lambda x: x - self.kept, (x,))


class WritesAfterBranch(Counts):
    def forward(self, x):
        def more(x):
            kept = self.kept + 1
            return x + kept, kept

        result, kept = torch.cond(x.sum() > 0, more, lambda x: (x - self.kept, self.kept * 1), (x,))
        self.kept.copy_(kept)
        return result


class Copies(nn.Module):
    def forward(self, x):
        return copy.copy(x).mul_(2)


class Clones(nn.Module):
    def forward(self, x):
        return x.clone().mul_(2)


@pytest.mark.parametrize(
    ("failing", "fix", "repaired"),
    [
        pytest.param(WritesInBranch, "`self.kept.copy_(value)`", WritesAfterBranch, id="write in a branch"),
        pytest.param(Copies, "`x.clone()`", Clones, id="copy.copy"),
    ],
)
def test_the_fix_is_named_and_works(failing, fix, repaired):
    (found,) = fe.check(failing, (X,)).diagnostics
    report = fe.check(repaired, (X,))
    eager, program = repaired(), fe.export(repaired, (X,))
    bound = fe.bind(program, dict(eager.state_dict())).module()

    assert (found.code, fix in found.fix.message) == ("FE202", True)
    assert report.is_clean, str(report)
    for x in (X, X + 1, X + 2):
        assert torch.equal(bound(x), eager(x))
