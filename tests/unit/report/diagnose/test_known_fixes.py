"""Fixes of FE202 that torch's message does not name: each works when followed."""

from __future__ import annotations

import copy
import math

import pytest
import torch
from torch import nn
from torch.nn.attention.flex_attention import create_block_mask, flex_attention

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


class RowsOfOne(nn.Module):
    def __init__(self):
        super().__init__()
        rows = torch.linspace(-1, 1, 8).reshape(2, 4)
        self.scale, self.shift = (nn.Parameter(self.own(row)) for row in rows)

    def own(self, row):
        return row

    def forward(self, x):
        def step(i, x):
            return i + 1, x * self.scale + self.shift

        return torch.while_loop(lambda i, x: i < 3, step, (torch.tensor(0), x))[1]


class RowsOfTheirOwn(RowsOfOne):
    def own(self, row):
        return row.clone()


class ReadsRows(nn.Module):
    def forward(self, x):
        first, second = self.rows(x)

        def step(i, x):
            return i + 1, x * first + second

        return torch.while_loop(lambda i, x: i < 3, step, (torch.tensor(0), x))[1]

    def rows(self, x):
        return x[0], x[1]


class ReadsCopies(ReadsRows):
    def rows(self, x):
        return x[0].clone(), x[1].clone()


class Attends(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.linear = nn.Linear(4, 4)

    def forward(self, x):
        x = self.linear(x)[None, None]
        return flex_attention(x, x, x)


class AttendsOnly(Attends):
    def __init__(self):
        super().__init__()
        self.requires_grad_(False)


@pytest.mark.parametrize(
    ("failing", "fix", "repaired"),
    [
        pytest.param(RowsOfOne, "copy `self.scale` and `self.shift` with", RowsOfTheirOwn, id="rows"),
        pytest.param(ReadsRows, "copy `first` and `second` with", ReadsCopies, id="local rows"),
        pytest.param(
            Attends,
            "call `model.requires_grad_(False)`",
            AttendsOnly,
            id="flex_attention",
            marks=pytest.mark.filterwarnings("ignore:flex_attention called without"),
        ),
        pytest.param(WritesInBranch, "`self.kept.copy_(value)`", WritesAfterBranch, id="write in a branch"),
        pytest.param(Copies, "`x.clone()`", Clones, id="copy.copy"),
    ],
)
def test_known_fix_is_printed_and_works(failing, fix, repaired):
    (found,) = fe.check(failing, (X,)).diagnostics
    report = fe.check(repaired, (X,))
    eager, program = repaired(), fe.export(repaired, (X,))
    bound = fe.bind(program, dict(eager.state_dict())).module()

    assert (found.code, fix in found.fix.message) == ("FE202", True)
    assert report.is_clean, str(report)
    for x in (X, X + 1, X + 2):
        assert torch.equal(bound(x), eager(x))


class WritesCache(nn.Module):
    def forward(self, x, key, value):
        key[:3], value[:3] = x, x
        return x @ key.T @ value


def caches(**options):
    pair = torch.zeros(2, 5, 4, **options)
    return pair[0], pair[1]


def test_cache_that_requires_grad_has_a_fix():
    (found,) = fe.check(WritesCache, (X, *caches(requires_grad=True))).diagnostics
    program = fe.export(WritesCache, (X, *caches()))
    expected, written = caches(), caches()

    assert (found.code, "`x.requires_grad_(False)`" in found.fix.message) == ("FE202", True)
    assert torch.equal(program.module()(X, *written), WritesCache()(X, *expected))
    assert all(map(torch.equal, written, expected))


class Masked(nn.Module):
    def forward(self, x, block_mask):
        return flex_attention(x, x, x, block_mask=block_mask)


def test_block_mask_input_is_named_in_the_note():
    mask = create_block_mask(lambda b, h, q, k: q >= k, None, None, 128, 128, device="cpu")

    (found,) = fe.check(Masked, (torch.zeros(1, 1, 128, 16), mask)).diagnostics

    assert found.code == "FE202"
    assert "the input `block_mask`" in found.notes[0]
    assert found.fix.message.startswith("create that object in `forward`")


class Asks(nn.Module):
    """A model of one call."""

    def __init__(self, call):
        super().__init__()
        self.call = call

    def forward(self, x):
        return self.call(x)


def stacks(x):
    return torch.tensor([x[0, 0], x[1, 1]])


def reads_mean(x):
    return torch.as_tensor(x.mean().item()) + x


def copies_deeply(x):
    return copy.deepcopy(x).mul_(2)


def one_hot(x):
    return nn.functional.one_hot(x.long().abs())


def counts(x):
    return x.flatten()[: sum(torch.bincount(x.long().abs().flatten(), minlength=3).tolist())]


def truncates(x):
    total = x.sum().item()
    return x * int(total)


def takes_root(x):
    total = x.abs().sum().item()
    return x * math.sqrt(total)


@pytest.mark.parametrize(
    ("call", "fix", "better"),
    [
        (stacks, "`torch.stack([x[0, 0], x[1, 1]])`", lambda x: torch.stack([x[0, 0], x[1, 1]])),
        (reads_mean, "`x.mean()`", lambda x: x.mean() + x),
        (copies_deeply, "`x.clone()`", lambda x: x.clone().mul_(2)),
        (
            one_hot,
            "pass the number of classes",
            lambda x: nn.functional.one_hot(x.long().abs(), 2),
        ),
        (counts, "count into a tensor of fixed size", None),
        (
            truncates,
            "`tensor.to(torch.int64).item()`",
            lambda x: x * x.sum().to(torch.int64).item(),
        ),
        (takes_root, "`(total ** 0.5)`", lambda x: x * x.abs().sum().item() ** 0.5),
    ],
)
def test_fix_of_an_unsupported_call_works(call, fix, better):
    (found,) = fe.check(lambda: (Asks(call), (X,))).diagnostics

    assert fix in found.fix.message
    if better is not None:
        program = fe.export(lambda: (Asks(better), (X,))).module()
        torch.testing.assert_close(program(X / 2), better(X / 2))


class HoldsLazy(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.LazyLinear(2)

    def forward(self, x):
        return self.linear(x)


def called_once():
    model, x = HoldsLazy(), torch.zeros(3, 4)
    model(x)
    return model, (x,)


def test_uninitialized_lazy_module_has_a_fix():
    (found,) = fe.check(HoldsLazy, (X,), target=["cpu", "H100"]).diagnostics

    assert (found.code, "`model(*args)`" in found.fix.message) == ("FE103", True)
    assert fe.check(called_once, target=["cpu", "H100"]).is_clean


class PutsOnCPU(Counts):
    def forward(self, x, index):
        self.kept[index] = torch.ones(2, device="cpu")
        return x + self.kept


def test_index_put_of_a_value_on_another_device_is_a_device_mismatch():
    (found,) = fe.check(PutsOnCPU, (X, torch.tensor([1, 2])), target="H100").diagnostics

    assert found.code == "FE502"
