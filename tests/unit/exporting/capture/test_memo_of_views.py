"""Views that a block returns, and what code does with them, are as they would be had it been traced."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from tests.unit.exporting.capture.memo_models import AUTO, DEPTH, Block, check_outcome


class Returns(Block):
    """Returns what `result` makes of the block, its input and what it computed."""

    def __init__(self, result):
        super().__init__()
        self.result = result

    def forward(self, x):
        return self.result(self, x, super().forward(x))


class Uses(nn.Module):
    """Gives each result to `use`, which returns the next input."""

    def __init__(self, result, use):
        super().__init__()
        self.blocks = nn.ModuleList([Returns(result) for _ in range(DEPTH)])
        self.use = use

    def forward(self, x):
        x = x * 1
        for block in self.blocks:
            x = self.use(*block(x), x)
        return x


def parts(block, x, y):
    return y.split(4, -1)


def no_grad_part(block, x, y):
    with torch.no_grad():
        return y[:, :4], y


def written_part(block, x, y):
    part = y[:, :4]
    part.add_(x[:, :4])
    return part, y


VIEWS = {
    "parts": parts,
    "part and whole": lambda block, x, y: (y[:, 4:], y),
    "part of a part": lambda block, x, y: (y[:, 2:][:, :4], y.t()),
    "without gradient": no_grad_part,
    "written": written_part,
    "expanded": lambda block, x, y: (y.sum(-1, keepdim=True).expand(-1, 4), y),
    "other dtype": lambda block, x, y: (y.view(torch.int32)[:, :4], y),
    "detached": lambda block, x, y: (y.detach(), y),
    "data": lambda block, x, y: (y.data, y),
    "detached input": lambda block, x, y: (x.detach(), y),
    "of the input": lambda block, x, y: (x[:, :4], y),
    "of a parameter": lambda block, x, y: (block.norm.weight[:4], y),
    "of the whole input": lambda block, x, y: (x.view_as(x), x),
    "two aliases": lambda block, x, y: (y.view(-1), y),
    "conjugate": lambda block, x, y: (torch.view_as_complex(y.reshape(-1, 4, 2)).conj(), y),
    "negative": lambda block, x, y: (torch.view_as_complex(y.reshape(-1, 4, 2)).conj().imag, y),
}


def read(a, b, x):
    return x + a.sum() + b.sum()


def writes_one(a, b, x):
    a.mul_(2)
    return x + b.sum()


def writes_whole(a, b, x):
    (b if a._base is None else a._base).mul_(2)
    return x + a.sum()


def asks_base(a, b, x):
    facts = (a._base is None, a._base is b, b._base is a._base, a._is_view() and a._base.is_leaf)
    return x * (1 + sum(fact << at for at, fact in enumerate(facts)))


def computes_with_base(a, b, x):
    return x if a._base is None else x + a._base.sum()


def asks_everything(a, b, x):
    facts = [(t.is_leaf, t.requires_grad, t.is_conj(), t.is_neg(), t.is_contiguous()) for t in (a, b)]
    same = (a is b, a is x, a.untyped_storage()._cdata == x.untyped_storage()._cdata)
    number = sum(fact << at for at, fact in enumerate((*facts[0], *facts[1], *same)))
    return x * number + a.resolve_conj().resolve_neg().real.sum()


def asks_versions(a, b, x):
    found = a._version + 10 * b._version
    with torch.no_grad():
        a.add_(1)
    return x * (1 + found + 100 * a._version + 1000 * b._version + 10000 * x._version)


def asks_origin(a, b, x):
    return x * (1 + len(type(a.grad_fn).__name__))


def asks_origin_after_writing(a, b, x):
    b.add_(1)
    return x * (1 + len(type(a.grad_fn).__name__))


def detaches(a, b, x):
    return x + a.detach().add_(1).sum() + b.sum()


def detaches_in_place(a, b, x):
    return x + a.detach_().sum()


def views_after_writing(a, b, x):
    a[:, 1:].mul_(2)
    a[:, :2].mul_(3)
    return x + a[:, 2:].sum() + b.sum()


def gradient(a, b, x):
    found = torch.autograd.grad(a.float().sum(), x, allow_unused=True)[0]
    return x if found is None else x + found


USES = [
    read,
    writes_one,
    writes_whole,
    asks_base,
    computes_with_base,
    asks_everything,
    asks_versions,
    asks_origin,
    asks_origin_after_writing,
    detaches,
    detaches_in_place,
    views_after_writing,
    gradient,
]
COMPLEX = ("conjugate", "negative")  # Written to, they are traced without the memo.
SOON = {
    (parts, writes_one),
    (VIEWS["part and whole"], writes_whole),
    (VIEWS["part and whole"], computes_with_base),
    (VIEWS["part and whole"], asks_origin_after_writing),
    (written_part, asks_versions),
    (VIEWS["part of a part"], views_after_writing),
    (VIEWS["negative"], asks_everything),
}


CASES = [
    (f"{name}-{use.__name__}-{'auto' if dynamic else 'static'}-{'gradients' if has_gradients else 'none'}",
     view, use, dynamic, has_gradients)
    for name, view in VIEWS.items()
    for use in (USES if name not in COMPLEX else [read, asks_everything])
    for dynamic in (None, AUTO)
    for has_gradients in (True, False)
]  # fmt: skip


def marks_of(number, view, use, dynamic):
    if dynamic is None and (view, use) in SOON:
        return ()
    return pytest.mark.slow if number % 29 == 0 else pytest.mark.exhaustive


@pytest.mark.parametrize(
    ("view", "use", "dynamic", "has_gradients"),
    [
        pytest.param(*case, id=name, marks=marks_of(number, *case[:3]))
        for number, (name, *case) in enumerate(CASES)
    ],
)
def test_a_view_is_what_it_would_be(view, use, dynamic, has_gradients):
    check_outcome(Uses(view, use).eval().requires_grad_(has_gradients), dynamic=dynamic)
