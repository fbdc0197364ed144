"""A parameter that `forward` reaches through a list is the parameter of the program."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import fakexport as fe

X = torch.linspace(-1, 1, 12).reshape(3, 4)


class InList(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(4))
        self.register_buffer("shift", torch.zeros(4), persistent=False)
        self.kept = {"all": [self.weight, self.shift]}

    def forward(self, x):
        weight, shift = self.kept["all"]
        return x * weight + shift


class OnlyViewInList(InList):
    """A view of a part is no name of the parameter."""

    def __init__(self):
        super().__init__()
        self.kept["all"][1] = self.weight.detach()[:1]


class InListAndByName(InList):
    def forward(self, x):
        return super().forward(x) * self.weight


class LayerInList(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 4)
        self.kept = [self.layer]

    def forward(self, x):
        return self.kept[0](x)


class WritesByList(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("total", torch.zeros(4))
        self.kept = [self.total]

    def forward(self, x):
        self.kept[0].add_(x[0])
        return x + self.total


@pytest.mark.parametrize("target", ["cpu", "H100"])
@pytest.mark.parametrize(
    "kind", [InList, InListAndByName, LayerInList, WritesByList], ids=lambda kind: kind.__name__
)
def test_it_is_bound_by_its_name(kind, target, tmp_path):
    torch.manual_seed(1)
    eager = kind()
    state = {name: torch.rand_like(value) for name, value in eager.state_dict().items()}
    eager.load_state_dict(state)
    report = fe.check(kind, (X,), target=target)
    fe.save(fe.export(kind, (X,), target=target), tmp_path / "program.pt2")
    devices = None if target == "cpu" else {"cuda:0": "cpu"}

    bound = fe.bind(fe.load(tmp_path / "program.pt2"), state, devices=devices)

    assert report.is_clean, str(report)
    assert not bound.constants.keys() - {"shift"}
    run = bound.module()
    for _ in range(3):
        assert torch.equal(run(X), eager(X))


class ConjugateInList(nn.Module):
    """Looks at the same memory and reads other values."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(4, dtype=torch.complex64))
        self.kept = [self.weight.detach().conj()]

    def forward(self, x):
        return x * self.weight + self.kept[0]


@pytest.mark.parametrize("kind", [OnlyViewInList, ConjugateInList], ids=lambda kind: kind.__name__)
def test_another_view_is_reported(kind):
    report = fe.check(kind, (X,))

    assert [each.code for each in report.diagnostics] == ["FE601"]
