"""Views that a block returns, and what code does with them, are as they would be had it been traced."""

from __future__ import annotations

import pytest
import torch

from tests.unit.capture.memo_models import AUTO, check_outcome
from tests.unit.capture.test_operator_memo import Uses


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
    asks_versions,
    asks_origin,
    asks_origin_after_writing,
    detaches,
    detaches_in_place,
    views_after_writing,
    gradient,
]
SOON = {
    (parts, writes_one),
    (VIEWS["part and whole"], writes_whole),
    (VIEWS["part and whole"], computes_with_base),
    (VIEWS["part and whole"], asks_origin_after_writing),
    (written_part, asks_versions),
    (VIEWS["part of a part"], views_after_writing),
}


CASES = [
    (f"{name}-{use.__name__}-{'auto' if dynamic else 'static'}-{'gradients' if has_gradients else 'none'}",
     view, use, dynamic, has_gradients)
    for name, view in VIEWS.items()
    for use in USES
    for dynamic in (None, AUTO)
    for has_gradients in (True, False)
]  # fmt: skip


def marks_of(number, view, use, dynamic):
    if dynamic is None and (view, use) in SOON:
        return ()
    return pytest.mark.slow if number % 7 == 0 else pytest.mark.exhaustive


@pytest.mark.parametrize(
    ("view", "use", "dynamic", "has_gradients"),
    [
        pytest.param(*case, id=name, marks=marks_of(number, *case[:3]))
        for number, (name, *case) in enumerate(CASES)
    ],
)
def test_a_view_is_what_it_would_be(view, use, dynamic, has_gradients):
    model = Uses(view, lambda result, x: use(*result, x)).eval().requires_grad_(has_gradients)

    check_outcome(model, dynamic=dynamic)
