"""Operators that a model repeats are answered from memory, and the program is that of stock torch."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from fakexport._torch.speed.operator_memo import OperatorMemo
from fakexport.exporting.capture.capture import capture
from tests.unit.exporting.capture.memo_models import (
    AUTO,
    Repeats,
    X,
    attends,
    both_ways,
    check,
    check_outcome,
    in_chunks,
)

GENERATOR = torch.Generator()
OPERATORS = {
    "attention": lambda m, x, at: attends(m, x),
    "experts": lambda m, x, at: x + (x @ m.weight).softmax(-1).topk(2, -1).values.sum(-1, keepdim=True),
    "positions": lambda m, x, at: x + torch.sin(torch.arange(4, device=x.device)[:, None] * x[0]).to(x.dtype),
    "mask": lambda m, x, at: torch.full((4, 4), -1.0).triu(1).softmax(-1) @ x,
    "cast": lambda m, x, at: (x.double() * torch.rsqrt(x.double().pow(2).mean(-1, True) + 1e-6)).float(),
    "halves": lambda m, x, at: torch.cat([-x.chunk(2, -1)[1], x.chunk(2, -1)[0]], -1).unflatten(-1, (2, 3)),
    "sort": lambda m, x, at: x + torch.sort(x, -1).values + x.max(-1, keepdim=True)[0],
    "gather": lambda m, x, at: x + x.gather(1, torch.zeros_like(x, dtype=torch.int64)),
    "split": lambda m, x, at: torch.cat(x.split([2, 4], -1)[::-1], -1),
    "pad": lambda m, x, at: nn.functional.pad(x, (0, 0, 1, 0))[1:],
    "einsum": lambda m, x, at: x + torch.einsum("sd,td->st", x, x).softmax(-1) @ x,
    "where": lambda m, x, at: torch.where(x > 0, x, x * 0.1).masked_fill(x < 0, 0.0).cumsum(1),
    "index": lambda m, x, at: x[:, torch.arange(5, -1, -1)],
    "unused": lambda m, x, at: (torch.stack([x, x]), x * 2)[1],
    "literal": lambda m, x, at: x + torch.tensor([1.0] * 6),
    "by its own name": lambda m, x, at: torch.ops.aten.gelu(x) + torch.special.erf(x),
    "dropout": lambda m, x, at: nn.functional.dropout(x, training=True),
    "batch norm": lambda m, x, at: nn.functional.batch_norm(x, m.mean, m.variance, training=True),
    "a generator": lambda m, x, at: x + torch.rand(6, generator=GENERATOR),
    "a buffer that is written": lambda m, x, at: x + m.mean.add_(0.5),
    "checkpoint": lambda m, x, at: checkpoint(lambda y: torch.relu(y @ m.weight), x, use_reentrant=False),
    "branches": lambda m, x, at: torch.cond(x.sum() > 0, lambda x: x + 1, lambda x: x * 2, (torch.relu(x),)),
    "annotations": lambda m, x, at: annotated(x, at // 3),
}


def annotated(x, stage):
    with torch.fx.traceback.annotate({"stage": stage}):
        return torch.relu(x)


@pytest.mark.slow
@pytest.mark.parametrize("step", OPERATORS.values(), ids=OPERATORS)
def test_operators_that_are_repeated(step):
    check_outcome(Repeats(step), (X,), dynamic=AUTO)


@pytest.mark.parametrize("dynamic", [None, AUTO], ids=["static", "auto"])
def test_repeated_operators_are_answered_from_memory(memos, dynamic):
    check(Repeats(lambda model, x, at: torch.relu(x @ model.weight)), (X,), dynamic=dynamic)

    assert memos[0].answered > 2 * memos[0].computed


def test_guards_that_torch_adds_in_each_layer_do_not_hide_answers(memos):
    """Sizes of chunks are not simplified, so torch adds the same guards again in each layer."""
    rows = torch.export.Dim.AUTO
    check(Repeats(in_chunks, count=6), (torch.ones(2, 10, 6),), dynamic=({0: rows, 1: rows},))

    assert memos[0].answered > memos[0].computed


def test_devices_that_are_alike_share_answers(memos):
    both_ways(Repeats(lambda m, x, at: torch.relu(x.to(f"cuda:{at // 3}") * 2)), (X,), target="3xH100")

    assert memos[0].answered > 1.5 * memos[0].computed


def test_a_trace_that_fails_with_the_memo_is_made_without(monkeypatch):
    def fail(*_):
        raise RuntimeError("the memo is wrong")

    monkeypatch.setattr(OperatorMemo, "_answer", fail)
    model = Repeats(lambda model, x, at: torch.relu(x))

    assert capture(model, (X,)).program is not None
    with pytest.raises(AssertionError, match="the memo is wrong"):
        check(model, (X,))


def test_what_the_memo_asks_first_is_still_a_question_of_the_model():
    """It lets results know if they are contiguous, which asks whether a size is 1, without a guard."""

    class AsksForOneRow(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(6, 6)

        def forward(self, x):
            y = self.layer(x)
            return y.squeeze(0) if x.shape[0] == 1 else y.mean(0) + y.sum()

    program = check(AsksForOneRow().eval(), (X,), dynamic=AUTO)

    with pytest.raises(AssertionError, match=r"size\(\)\[0\] != 1"):
        program.module()(torch.ones(1, 6))


@pytest.mark.slow
@pytest.mark.parametrize(
    "step",
    [
        lambda y: (y.contiguous() * 2).eq(1) * y,
        lambda y: (y.data.contiguous() * 2).eq(1) * y,
        lambda y: y * 2 if y.is_contiguous() else y * 3,
    ],
    ids=["contiguous", "data", "is_contiguous"],
)
def test_results_whose_contiguity_is_known_are_not_asked_again(step):
    """A second computation would leave nodes. They are removed, but later nodes get other names."""

    class AsksInEachLayer(nn.Module):
        def __init__(self):
            super().__init__()
            self.layers = nn.ModuleList(nn.Linear(8, 8) for _ in range(6))

        def forward(self, x):
            for layer in self.layers:
                x = step(layer(x).transpose(0, 1)).transpose(0, 1)
            return x

    rows = torch.export.Dim.AUTO
    check(AsksInEachLayer(), (torch.ones(3, 4, 8),), dynamic=({0: rows, 1: rows},))


@pytest.mark.slow
def test_a_question_for_a_gradient_function_traces_again(traced_again):
    def step(model, x, at):
        y = torch.relu(x @ model.weight)
        return y * (2 if at == 7 and y.grad_fn is not None else 1)

    check(Repeats(step), (X,))

    assert traced_again()
