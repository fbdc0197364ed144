"""In Python, nothing of what torch logs or prints of a failing model is seen next to the report."""

import contextlib
import logging

import pytest
import torch
from torch import nn

import fakexport as fe


class Branch(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x if x.sum() > 0 else -x


class Size(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.zeros(int(x.sum().item())) + 1


class WrongShape(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(5, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.linear(x)


@pytest.mark.slow
@pytest.mark.parametrize("strict", [False, True])
def test_a_failing_model_leaves_nothing_on_the_streams_and_in_the_log(capfd, caplog, strict):
    for model in (Branch, Size, WrongShape):
        fe.check(lambda model=model: (model(), (torch.zeros(3, 4),)), strict=strict)
        with contextlib.suppress(Exception):
            fe.export(model, (torch.zeros(3, 4),), strict=strict)

    assert capfd.readouterr() == ("", "")
    assert [record for record in caplog.records if record.levelno >= logging.WARNING] == []
