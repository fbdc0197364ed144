"""Writes of `forward` that the program would lose are refused at their line."""

from __future__ import annotations

import inspect

import numpy as np
import pytest
import torch
from torch import nn

import fakexport as fe

pytestmark = pytest.mark.filterwarnings("ignore:The tensor attribute:UserWarning")  # Of torch.export.

X = torch.linspace(-1, 1, 12).reshape(3, 4)
OF_FILE = torch.zeros(4)
ARRAY = np.zeros(4, dtype="float32")
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


class WritesArray(nn.Module):
    def __init__(self):
        super().__init__()
        self.rows = np.zeros(4, dtype="float32")

    def forward(self, x):
        rows = torch.from_numpy(self.rows)
        rows[:2].add_(1)  # here
        return x * torch.from_numpy(self.rows)


class WritesArrayOfFile(nn.Module):
    def forward(self, x):
        torch.as_tensor(ARRAY).add_(1)  # here
        return x * torch.as_tensor(ARRAY)


class Grows(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("kept", torch.zeros(1, 4))

    def forward(self, x):
        self.kept = torch.cat((self.kept, x))  # here
        return x + self.kept.sum(0)


class ChangesDtype(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = nn.Module()
        self.inner.register_buffer("total", torch.zeros(4))

    def forward(self, x):
        self.inner.total = self.inner.total.double() + x[0]  # here
        return x + self.inner.total.sum()


class ExchangesPlainTensor(nn.Module):
    def __init__(self):
        super().__init__()
        self.steps = torch.zeros(())

    def forward(self, x):
        self.steps = self.steps + 1  # here
        return x * self.steps


@pytest.mark.parametrize("target", ["cpu", "H100"])
@pytest.mark.parametrize("kind", [Grows, ChangesDtype, ExchangesPlainTensor], ids=lambda kind: kind.__name__)
def test_an_exchange_of_what_is_read_is_refused_at_its_line(kind, target):
    assert_refused(kind, target)


@pytest.mark.parametrize("kind", [WritesArray, WritesArrayOfFile], ids=lambda kind: kind.__name__)
def test_a_write_to_an_array_is_refused_at_its_line(kind):
    assert_refused(kind, "cpu")


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
    with pytest.raises(fe.LostWriteError):
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


class CopiesOfLiterals(nn.Module):
    def forward(self, x):
        one, other = torch.tensor([1.0, 2.0, 3.0, 4.0]), torch.tensor(ARRAY)
        one.add_(1)
        other.add_(2)
        return x + one + other + torch.tensor([1.0]).add_(3)


class Remembers(nn.Module):
    """Keeps what it computes, and computes it anew each time: no call reads what an earlier one left."""

    def __init__(self):
        super().__init__()
        self.register_buffer("cosines", torch.zeros(1, 4), persistent=False)

    def forward(self, x):
        self.cosines = torch.cos(x)
        return x + self.cosines


KEEP = [OnlyReads, OneUnderTwoNames, OwnList, CopiesOfLiterals, Remembers]


@pytest.mark.parametrize("kind", KEEP, ids=lambda kind: kind.__name__)
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
