"""State whose memory the program would not share any more is refused where `forward` writes to it."""

from __future__ import annotations

import inspect

import pytest
import torch
from torch import nn

import fakexport as fe

X = torch.linspace(-1, 1, 12).reshape(3, 4)
OF_FILE = torch.zeros(4)
KEPT = {"rows": [torch.zeros(4)]}


class Views(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("whole", torch.zeros(4))
        self.register_buffer("part", self.whole[:2])


class WritesPart(Views):
    def forward(self, x):
        self.part.add_(1)  # here
        return x + self.whole


class WritesWhole(Views):
    def forward(self, x):
        self.whole.mul_(2)  # here
        return x[:, :2] + self.part


class WritesViewOfPart(Views):
    def forward(self, x):
        self.part[1:].fill_(x.shape[0])  # here
        return x + self.whole


class WritesPlainView(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("whole", torch.zeros(4))
        self.first = self.whole[:1]

    def forward(self, x):
        self.first.add_(1)  # here
        return x + self.whole


class WritesReinterpreted(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("numbers", torch.zeros(4))
        self.register_buffer("bits", self.numbers.view(torch.int32))

    def forward(self, x):
        self.bits.add_(1)  # here
        return x + self.numbers


class WritesFile(nn.Module):
    def forward(self, x):
        OF_FILE.add_(1)  # here
        return x + OF_FILE


class WritesContainer(nn.Module):
    def forward(self, x):
        KEPT["rows"][0].copy_(x[0])  # here
        return x + KEPT["rows"][0]


@pytest.mark.parametrize("target", ["cpu", "H100"])
@pytest.mark.parametrize(
    "kind",
    [WritesPart, WritesWhole, WritesViewOfPart, WritesPlainView, WritesReinterpreted],
    ids=lambda kind: kind.__name__,
)
def test_a_write_to_one_of_two_views_is_refused_at_its_line(kind, target):
    assert_refused(kind, target)


@pytest.mark.parametrize("kind", [WritesFile, WritesContainer], ids=lambda kind: kind.__name__)
def test_a_write_to_a_tensor_of_no_module_is_refused_at_its_line(kind):
    assert_refused(kind, "cpu")


def assert_refused(kind, target):
    report = fe.check(lambda: (kind(), (X,)), target=target)

    (found,) = [each for each in report.diagnostics if each.severity == "error"]
    lines, first = inspect.getsourcelines(kind)
    assert found.code == "FE912"
    assert found.primary.span.line == first + next(at for at, line in enumerate(lines) if "# here" in line)
    with pytest.raises(fe.SharedStateWritten):
        fe.export(kind, (X,), target=target)


class OnlyReads(Views):
    def forward(self, x):
        return x[:, :2] + self.part * self.whole[:2]


class OneUnderTwoNames(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("one", torch.zeros(4))
        self.register_buffer("other", self.one)

    def forward(self, x):
        self.one.add_(1)
        return x + self.other


class OwnList(nn.Module):
    def __init__(self):
        super().__init__()
        self.rows = [torch.zeros(4), torch.ones(4)]

    def forward(self, x):
        self.rows[0].add_(1)
        return x + self.rows[0] + self.rows[1]


@pytest.mark.parametrize("kind", [OnlyReads, OneUnderTwoNames, OwnList], ids=lambda kind: kind.__name__)
def test_what_a_program_keeps_is_not_refused(kind, tmp_path):
    eager = kind()
    fe.save(fe.export(kind, (X,)), tmp_path / "program.pt2")
    bound = fe.bind(tmp_path / "program.pt2", dict(kind().state_dict())).module()

    for _ in range(3):
        assert torch.equal(bound(X), eager(X))


def test_recurrent_weights_of_a_gpu_are_no_views(recwarn):
    report = fe.check(lambda: (nn.LSTM(4, 8), (torch.zeros(3, 2, 4),)), target="H100")

    assert report.is_clean, str(report)
    assert not [each for each in recwarn if "data pointer" in str(each.message)]
