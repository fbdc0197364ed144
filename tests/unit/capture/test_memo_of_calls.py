"""Operators are answered from memory only if everything that they may depend on is the same."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from fakexport._torch.operator_memo import OperatorMemo
from fakexport.capture.capture import capture
from tests.unit.capture.memo_models import AUTO, DEPTH, INPUTS, Block, Model, check, slow


def blocks_of(kind):
    return Model([kind(at) for at in range(DEPTH)]).eval()


@pytest.mark.parametrize("dynamic", [None, AUTO], ids=["static", "auto"])
def test_repeated_operators_are_answered_from_memory(memos, dynamic):
    check(blocks_of(Block), dynamic=dynamic)

    assert memos[0].answered > 4 * memos[0].computed / 2


def test_a_trace_that_fails_with_the_memo_is_made_without(monkeypatch):
    def fail(*_):
        raise RuntimeError("the memo is wrong")

    monkeypatch.setattr(OperatorMemo, "_answer", fail)

    assert capture(blocks_of(Block), INPUTS).program is not None
    with pytest.raises(AssertionError, match="the memo is wrong"):
        check(blocks_of(Block))


class AsksForOneRow(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(8, 8)

    def forward(self, x):
        y = self.layer(x)
        return y.squeeze(0) if x.shape[0] == 1 else y.mean(0) + y.sum()


def test_what_the_memo_asks_first_is_still_a_question_of_the_model():
    """It lets results know if they are contiguous, which asks whether a size is 1, without a guard."""
    program = check(AsksForOneRow().eval(), dynamic=AUTO)

    with pytest.raises(AssertionError, match=r"size\(\)\[0\] != 1"):
        program.module()(torch.ones(1, 8))


class Between(nn.Module):
    """Calls the blocks with something changed around one of them."""

    def __init__(self, around, kind=Block):
        super().__init__()
        self.blocks = nn.ModuleList([kind(at) for at in range(DEPTH)])
        self.around = around

    def forward(self, x):
        for at, block in enumerate(self.blocks):
            x = self.around(block, x) if at == DEPTH - 3 else block(x)
        return x


class AsksAndScales(Block):
    def forward(self, x):
        scale = 1 + torch.is_grad_enabled() + 2 * torch.are_deterministic_algorithms_enabled()
        scale += 4 * (torch.get_default_dtype() is torch.float64)
        scale += 8 * x.is_contiguous() + 16 * x.requires_grad
        return super().forward(x) * scale + torch.ones(8).sum()


def without_grad(block, x):
    with torch.no_grad():
        return block(x)


def in_autocast(block, x):
    with torch.autocast("cpu", dtype=torch.bfloat16):
        return block(x).float()


def in_float64(block, x):
    torch.set_default_dtype(torch.float64)
    try:
        return block(x).float()
    finally:
        torch.set_default_dtype(torch.float32)


def deterministic(block, x):
    torch.use_deterministic_algorithms(True)
    try:
        return block(x)
    finally:
        torch.use_deterministic_algorithms(False)


def transposed(block, x):
    return block(x.t().contiguous().t())


def detached(block, x):
    return block(x.detach())


def cast(block, x):
    return block(x.double().float())


def called_twice(block, x):
    return block(block(x))


def called_from_another_line(block, x):
    return block(x) + 0


AROUND = [
    without_grad,
    in_autocast,
    deterministic,
    transposed,
    called_from_another_line,
    *slow(in_float64, detached, cast, called_twice),
]


@pytest.mark.slow
@pytest.mark.parametrize("around", AROUND, ids=lambda around: around.__name__)
@pytest.mark.parametrize("kind", [Block, AsksAndScales])
def test_modes_around_a_call_are_seen(around, kind):
    check(Between(around, kind).eval())


class TakesMore(Block):
    def forward(self, x, extra=None, scale=1, into=None):
        if into is not None:
            into.append(x)
        result = super().forward(x) * scale
        return result if extra is None else result + extra


class Calls(nn.Module):
    def __init__(self, call):
        super().__init__()
        self.blocks = nn.ModuleList([TakesMore(at) for at in range(DEPTH)])
        self.call = call

    def forward(self, x):
        outputs = []
        first = x
        for at, block in enumerate(self.blocks):
            x = self.call(block, x, at, first, outputs)
        return sum(outputs, x)


def emptied(block, x, at, first, outputs):
    """The list is empty whenever a block is called, and what a block puts there is needed."""
    result = block(x, into=outputs)
    return result + outputs.pop() if outputs else result


CALLS = {
    "list that is emptied": emptied,
    "number": lambda block, x, at, first, outputs: block(x, scale=at),
    "float that equals an integer": lambda block, x, at, first, outputs: block(
        x, scale=1.0 if at == DEPTH - 3 else 1
    ),
    "boolean that equals an integer": lambda block, x, at, first, outputs: block(
        x, scale=True if at == DEPTH - 3 else 1
    ),
    "alias": lambda block, x, at, first, outputs: block(x, extra=x if at == DEPTH - 3 else first),
    "view": lambda block, x, at, first, outputs: block(x, extra=x.view_as(x) if at == DEPTH - 3 else x + 1),
    "list that collects": lambda block, x, at, first, outputs: block(x, into=outputs),
    "shape": lambda block, x, at, first, outputs: block(x, extra=x[:1] if at == DEPTH - 3 else x + 1),
    "integer tensor": lambda block, x, at, first, outputs: block(
        x, extra=torch.ones(8, dtype=torch.int64 if at == DEPTH - 3 else torch.float32)
    ),
    "missing": lambda block, x, at, first, outputs: block(x, extra=None if at == DEPTH - 3 else x),
}


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
def test_arguments_of_a_call_are_seen(call):
    check(Calls(call).eval())


class WritesBuffer(Block):
    def __init__(self, at):
        super().__init__(at)
        self.register_buffer("seen", torch.zeros(8))

    def forward(self, x):
        self.seen.add_(1)
        return super().forward(x) + self.seen


class WritesInput(Block):
    def forward(self, x):
        x = x.clone()
        return super().forward(x.mul_(2))


class WritesOutside(Block):
    def forward(self, x):
        return x.add_(super().forward(x))


class ReturnsView(Block):
    def forward(self, x):
        super().forward(x)
        return x.view(-1, 8)


class ReturnsInput(Block):
    def forward(self, x):
        super().forward(x)
        return x


class UnusedWork(Block):
    def forward(self, x):
        torch.stack([x, x])
        return super().forward(x)


class Picks(Block):
    def __init__(self, at=0):
        super().__init__(at)
        self.register_buffer("order", torch.arange(7, -1, -1))

    def forward(self, x):
        return super().forward(x[:, self.order])


class Splits(Block):
    def forward(self, x):
        a, b = super().forward(x).split(4, -1)
        return torch.cat([b, a], -1)


class Literal(Block):
    def forward(self, x):
        return super().forward(x) + torch.tensor([1.0] * 8)


class Dropout(Block):
    def forward(self, x):
        return torch.nn.functional.dropout(super().forward(x), training=True)


class Autocasts(Block):
    def forward(self, x):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return super().forward(x).float()


class WithoutGrad(Block):
    def forward(self, x):
        with torch.no_grad():
            return super().forward(x) + x


class BatchNorm(Block):
    def __init__(self, at):
        super().__init__(at)
        self.batch = nn.BatchNorm1d(8).train()

    def forward(self, x):
        return self.batch(super().forward(x))


SHAPES = [
    WritesOutside,
    UnusedWork,
    Splits,
    Picks,
    WithoutGrad,
    *slow(WritesBuffer, WritesInput, ReturnsView, ReturnsInput, Literal, Dropout, Autocasts, BatchNorm),
]


@pytest.mark.parametrize("dynamic", [AUTO, *slow(None)], ids=["auto", "static"])
@pytest.mark.parametrize("kind", SHAPES, ids=lambda kind: kind.__name__)
def test_a_block_is_traced_as_stock_torch_traces_it(kind, dynamic):
    check(blocks_of(kind), dynamic=dynamic)


class SizesBetween(Model):
    """A node of a size is named after the last function of torch, which may be one of the block before."""

    def forward(self, x):
        for block in self.blocks:
            x = block(x)
            count = x.shape[0] * 3
            x = x + torch.ones(count)[: count // 3, None]
        return x


@pytest.mark.slow
def test_sizes_computed_between_blocks_have_the_names_of_stock_torch():
    check(SizesBetween([Block(at) for at in range(DEPTH)]).eval(), dynamic=AUTO)


@pytest.mark.slow
def test_a_question_for_a_gradient_function_traces_again(traced_again):
    class Gradient(nn.Module):
        def __init__(self):
            super().__init__()
            self.blocks = nn.ModuleList([Block(at) for at in range(DEPTH)])

        def forward(self, x):
            y = x
            for block in self.blocks:
                y = block(y)
            return y * (2 if y.requires_grad and not y.is_leaf and y.grad_fn is not None else 1)

    check(Gradient().eval())

    assert traced_again()
