"""Equal blocks are traced once, and only equal ones: one test per thing that a block's code can observe.

Every model has blocks that differ in one thing alone. It is captured with reuse and without, and the
programs are compared down to the names of nodes.
"""

from __future__ import annotations

import enum
import logging
import random
from collections import deque

import pytest
import torch
from torch import nn

from fakexport.program import first_difference
from tests.unit.capture.reused_blocks import AUTO, DEPTH, Block, Model, both_ways, check, slow


def blocks_of(kind, **differing):
    return Model([kind(at) for at in range(DEPTH)]).eval()


@pytest.mark.parametrize("dynamic", [*slow(None), AUTO], ids=["static", "auto"])
def test_equal_blocks_are_traced_once(reports, dynamic):
    check(blocks_of(Block), dynamic=dynamic)

    assert reports[0].replayed >= DEPTH - 5, reports[0].report()


class Asks(Block):
    """Asks so much that torch forgets the first answers, and adds their guards again in the next block."""

    def forward(self, x):
        for at in range(2, 302):
            if x.shape[0] // at == 1_000 + at:
                x = x + 1
        return super().forward(x)


@pytest.mark.slow
def test_a_guard_that_is_known_already_does_not_keep_a_block_from_reuse(reports):
    program = check(blocks_of(Asks), dynamic=AUTO)

    assert reports[0].replayed >= DEPTH - 5, reports[0].report()
    assert len(set(program._guards_code)) == len(program._guards_code) > 256


class PicksPositive(Block):
    def forward(self, x):
        return super().forward(x) + x[x > 0].sum()


def test_blocks_that_can_never_be_reused_are_looked_at_once():
    with_reuse, without = both_ways(Model([PicksPositive(at) for at in range(DEPTH)]))

    assert with_reuse.blocks["PicksPositive"][:2] == (2, 0)
    assert set(with_reuse.blocks["PicksPositive"][2]) == {"aten.index.Tensor depends on data"}
    assert first_difference(with_reuse.program, without.program) is None


class Scales(Block):
    def __init__(self, scale):
        super().__init__()
        self.scale = scale

    def forward(self, x):
        return super().forward(x) * self.scale


@pytest.mark.parametrize("scales", [(1,) * 6, *slow((1, 2) * 4)], ids=["six", "twice four"])
def test_a_few_blocks_are_not_looked_at(scales):
    with_reuse, _ = both_ways(Model([Scales(scale) for scale in scales]))

    assert with_reuse.blocks == {}


def test_a_capture_says_how_many_calls_were_reused():
    with_reuse, without = both_ways(Model([Block(at) for at in range(DEPTH)]))

    calls, replayed, against = with_reuse.blocks["Block"]
    assert (calls, against) == (DEPTH, ())
    assert replayed >= DEPTH - 5
    assert without.blocks == {}


@pytest.mark.slow
def test_blocks_inside_of_blocks_that_differ_are_reused(reports):
    class Outer(nn.Module):
        def __init__(self, at):
            super().__init__()
            self.inner = Block(at)
            self.scale = float(at)

        def forward(self, x):
            return self.inner(x) * self.scale

    check(Model([Outer(at) for at in range(12)]).eval())

    assert reports[0].report()["Block"][1] > 0, reports[0].report()


class Reads(Block):
    """Position matters where it is read."""

    def forward(self, x):
        return super().forward(x) * (self.layer_idx + 1)


class ReadsByName(Block):
    def forward(self, x):
        return super().forward(x) * getattr(self, "layer" + "_" + "idx")


class ReadsDict(Block):
    def forward(self, x):
        return super().forward(x) * self.__dict__["layer_idx"]


class ReadsVars(Block):
    def forward(self, x):
        return super().forward(x) * vars(self)["layer_idx"]


class ReadsLate(Block):
    """Most blocks go one way, one of them another."""

    def forward(self, x):
        return super().forward(x) * (2 if self.layer_idx == DEPTH - 2 else 1)


class Shadowed(Block):
    layer_idx = 7

    def forward(self, x):
        return super().forward(x) * self.layer_idx


class Nested(Block):
    def __init__(self, at):
        super().__init__(at)
        self.settings = {"scale": [1.0, float(at)]}

    def forward(self, x):
        return super().forward(x) * self.settings["scale"][1]


class Holder:
    def __init__(self, at):
        self.at = at


class InObject(Block):
    def __init__(self, at):
        super().__init__(at)
        self.holder = Holder(at)

    def forward(self, x):
        return super().forward(x) * self.holder.at


class Slotted:
    __slots__ = ("at",)

    def __init__(self, at):
        self.at = at


class InSlots(InObject):
    def __init__(self, at):
        super().__init__(at)
        self.holder = Slotted(at)


class InQueue(Block):
    def __init__(self, at):
        super().__init__(at)
        self.queue = deque([1], maxlen=3 if at == DEPTH - 3 else 2)

    def forward(self, x):
        return super().forward(x) * self.queue.maxlen


class Training(Block):
    def __init__(self, at):
        super().__init__(at)
        self.drop = nn.Dropout(0.5)
        self.late = at

    def forward(self, x):
        self.drop.training = self.late > DEPTH // 2
        return self.drop(super().forward(x))


COUNTER = [0]
GLOBAL = 0


class CountsInList(Block):
    def forward(self, x):
        COUNTER[0] += 1
        return super().forward(x) * COUNTER[0]


class CountsInGlobal(Block):
    def forward(self, x):
        global GLOBAL
        GLOBAL += 1
        return super().forward(x) * GLOBAL


class CountsInClass(Block):
    count = 0

    def forward(self, x):
        type(self).count += 1
        return super().forward(x) * type(self).count


class CountsLate(Block):
    """Nothing shows before the count is high."""

    def forward(self, x):
        COUNTER[0] += 1
        return super().forward(x) * (2 if COUNTER[0] % DEPTH == DEPTH - 1 else 1)


class Color(enum.Enum):
    RED = 1


LOGGER = logging.getLogger("tests.reused_blocks")


class CountsInMember(Block):
    def forward(self, x):
        Color.RED.count += 1
        return super().forward(x) * (2 if Color.RED.count % DEPTH == DEPTH - 1 else 1)


class CountsInLogger(Block):
    def forward(self, x):
        LOGGER.count += 1
        return super().forward(x) * (2 if LOGGER.count % DEPTH == DEPTH - 1 else 1)


def counted(forward):
    calls = 0

    def inner(self, x):
        nonlocal calls
        calls += 1
        return forward(self, x) * calls

    return inner


class CountsInClosure(Block):
    @counted
    def forward(self, x):
        return Block.forward(self, x)


class Draws(Block):
    def forward(self, x):
        return super().forward(x) * random.choice([1, 2, 3, 4, 5])


class DrawsForDrop(Block):
    """Layer drop, as speech models have it."""

    def forward(self, x):
        return super().forward(x) if torch.rand([]).item() >= 0 else x


DEFAULTS = {"scale": 1}


def scaled(x, by=DEFAULTS):
    return x * by["scale"]


class WritesDefault(Block):
    def forward(self, x):
        DEFAULTS["scale"] = DEFAULTS["scale"] + 1
        return scaled(super().forward(x))


class Iterates(Block):
    numbers = iter(range(1, 1000))

    def forward(self, x):
        return super().forward(x) * next(Iterates.numbers)


OBSERVED = [
    Reads,
    ReadsLate,
    InObject,
    InQueue,
    Training,
    CountsInGlobal,
    CountsInMember,
    CountsInClosure,
    WritesDefault,
    *slow(
        ReadsDict,
        CountsInClass,
        CountsLate,
        ReadsByName,
        ReadsVars,
        Shadowed,
        Nested,
        InSlots,
        CountsInList,
        CountsInLogger,
        Draws,
        Iterates,
    ),
]


def start():
    global GLOBAL
    GLOBAL = COUNTER[0] = CountsInClass.count = 0
    Color.RED.count = LOGGER.count = 0
    DEFAULTS["scale"] = 1
    Iterates.numbers = iter(range(1, 1000))
    function = CountsInClosure.forward
    function.__closure__[function.__code__.co_freevars.index("calls")].cell_contents = 0
    random.seed(0)


@pytest.mark.parametrize("kind", OBSERVED, ids=lambda kind: kind.__name__)
def test_what_the_code_reads_is_seen(kind):
    check(blocks_of(kind), prepare=start)


def with_hook(model):
    model.blocks[DEPTH - 3].register_forward_hook(lambda module, args, result: result * 3)


def with_inner_hook(model):
    model.blocks[DEPTH - 3].up.register_forward_pre_hook(lambda module, args: (args[0] * 3,))


def with_hooks_that_differ(model):
    for at, block in enumerate(model.blocks):
        block.register_forward_hook(lambda module, args, result, at=at: result * at)


def with_hooks_that_collect(model):
    collected = []

    def note(module, args, result):
        collected.append(result.shape)
        return result * len(collected)

    for block in model.blocks:
        block.register_forward_hook(note)
    return collected.clear


def with_patched_forward(model):
    block = model.blocks[DEPTH - 3]
    block.forward = lambda x, block=block: Block.forward(block, x) * 3


def with_patched_method(model):
    block = model.blocks[DEPTH - 3]
    block.up.forward = lambda x: torch.cat([x, x], -1)


def with_a_larger_parameter(model):
    block = model.blocks[DEPTH - 3]
    block.up, block.down = nn.Linear(8, 32), nn.Linear(32, 8)


def with_another_dtype(model):
    model.blocks[DEPTH - 3].norm.weight = None


def with_a_frozen_parameter(model):
    model.blocks[DEPTH - 3].up.weight.requires_grad_(False)


def with_a_tie(model):
    for block in model.blocks:
        block.down = nn.Linear(16, 8, bias=True)
    model.blocks[DEPTH - 3].norm.bias = model.blocks[DEPTH - 3].norm.weight


def with_a_tie_to_another_block(model):
    model.blocks[DEPTH - 3].up.weight = model.blocks[0].up.weight


def with_another_epsilon(model):
    model.blocks[DEPTH - 3].norm.eps = 0.1


def with_training(model):
    model.blocks[DEPTH - 3].train()


def with_strides(model):
    block = model.blocks[DEPTH - 3]
    block.up.weight = nn.Parameter(torch.ones(8, 16).t())


CHANGES = [
    with_hook,
    with_hooks_that_differ,
    with_hooks_that_collect,
    with_patched_forward,
    with_patched_method,
    with_a_larger_parameter,
    with_a_frozen_parameter,
    with_a_tie,
    with_another_epsilon,
    *slow(with_inner_hook, with_another_dtype, with_a_tie_to_another_block, with_training, with_strides),
]


@pytest.mark.slow
@pytest.mark.parametrize("change", CHANGES, ids=lambda change: change.__name__)
def test_what_the_module_is_is_seen(change):
    model = blocks_of(Block)
    prepare = change(model)

    check(model, prepare=prepare or (lambda: None))


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
def test_what_a_call_is_in_is_seen(around, kind):
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
def test_what_a_call_takes_is_seen(call):
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
def test_what_a_block_does_is_done_again(kind, dynamic):
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
def test_what_follows_a_block_is_as_if_it_had_been_traced():
    check(SizesBetween([Block(at) for at in range(DEPTH)]).eval(), dynamic=AUTO)


@pytest.mark.slow
def test_gradients_of_a_block_are_traced():
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
