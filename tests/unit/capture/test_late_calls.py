"""State that no walk can see is found by the last call of a kind, which is traced and compared."""

from __future__ import annotations

import decimal
import sys

import numpy
import pytest
import torch
from torch import nn

from fakexport.capture.block_reuse import BlockReuse, reuse
from fakexport.capture.block_reuse.block_groups import groups_of
from fakexport.program import first_difference
from tests.unit.capture.reused_blocks import AUTO, DEPTH, Block, Model, both_ways, check, slow

LIMIT = sys.getrecursionlimit()
IS_OPTIMIZING = torch._C._get_graph_executor_optimize()


@pytest.fixture(autouse=True)
def limit():
    yield
    start()


def hide(value):
    """Keep a bit in torch's own C, in a setting that no trace depends on and that is not compared."""
    torch._C._set_graph_executor_optimize(bool(value))


class Sets(Model):
    """Keeps a number where no walk comes."""

    def __init__(self, blocks, numbers):
        super().__init__(blocks)
        self.numbers = numbers

    def forward(self, x):
        for block, number in zip(self.blocks, self.numbers, strict=True):
            hide(number)
            x = block(x)
        return x


def number():
    return int(torch._C._get_graph_executor_optimize())


class Scales(Block):
    def forward(self, x):
        return super().forward(x) * (1 + number())


class ScalesByPlace(Block):
    def forward(self, x):
        return super().forward(x) * (self.layer_idx if number() else 1)


class AsksForSize(Block):
    def forward(self, x):
        return super().forward(x) * (2 if number() and x.shape[0] > 2 else 1)


class CallsAnother(Block):
    def other(self, x):
        return x

    def forward(self, x):
        y = super().forward(x)
        return self.other(y) if number() else y


class ReturnsOneTwice(Block):
    """Makes the same nodes in any case."""

    def forward(self, x):
        y = super().forward(x)
        z = y.clone()
        return (y, y) if number() else (y, z)


class Adds(Sets):
    def forward(self, x):
        for block, number in zip(self.blocks, self.numbers, strict=True):
            hide(number)
            y, z = block(x)
            x = y + z
        return x


class CountsItself(Block):
    """Every other run differs, and only runs are counted."""

    def forward(self, x):
        hide(1 - number())
        return super().forward(x) * (1 + number())


class CountsLateInPython(Block):
    """Only runs are counted, in Python's own C, and nothing shows before the fifth."""

    def forward(self, x):
        sys.setrecursionlimit(sys.getrecursionlimit() + 1)
        return super().forward(x) * (2 if sys.getrecursionlimit() - LIMIT >= 5 else 1)


class CountsLateByImport(Block):
    def forward(self, x):
        import sys as python

        python.setrecursionlimit(python.getrecursionlimit() + 1)
        return super().forward(x) * (2 if python.getrecursionlimit() - LIMIT >= 5 else 1)


class CountsLateInDecimals(Block):
    def forward(self, x):
        context = decimal.getcontext()
        context.prec += 1
        return super().forward(x) * (2 if context.prec >= 33 else 1)


NUMPY = ["ignore", "warn", "raise", "call", "print", "log"]


class CountsLateInNumpy(Block):
    def forward(self, x):
        at = NUMPY.index(numpy.geterr()["under"]) + 1
        numpy.seterr(under=NUMPY[at % 6])
        return super().forward(x) * (2 if at == 5 else 1)


class CountsLateInModule(Block):
    """The name of the function is put together while the block runs."""

    def forward(self, x):
        getattr(sys, "setrecursion" + "limit")(getattr(sys, "getrecursion" + "limit")() + 1)
        return super().forward(x) * (2 if getattr(sys, "getrecursion" + "limit")() - LIMIT >= 5 else 1)


LATE = [0] * (DEPTH - 2) + [1, 1]


@pytest.mark.parametrize(
    ("model", "kind", "numbers"),
    [
        (Sets, Scales, LATE),
        pytest.param(Adds, ReturnsOneTwice, LATE, marks=pytest.mark.slow),
        *(
            pytest.param(Sets, kind, LATE, marks=pytest.mark.slow)
            for kind in (ScalesByPlace, AsksForSize, CallsAnother)
        ),
    ],
)
def test_hidden_state_is_found_by_the_last_call(model, kind, numbers, traced_again):
    check(model([kind(at) for at in range(DEPTH)], numbers).eval(), dynamic=AUTO)

    assert len(traced_again()) == 1
    assert f"a late call of {kind.__name__} differs from an earlier one" in traced_again()[0]


def start():
    hide(IS_OPTIMIZING)
    sys.setrecursionlimit(LIMIT)
    decimal.getcontext().prec = 28
    numpy.seterr(under="ignore")


@pytest.mark.parametrize(
    "kind",
    [
        CountsLateInPython,
        *slow(CountsItself, CountsLateByImport, CountsLateInDecimals, CountsLateInNumpy, CountsLateInModule),
    ],
)
def test_blocks_that_keep_state_in_c_are_traced(kind):
    with_reuse, without = both_ways(Model([kind(at) for at in range(DEPTH)]).eval(), prepare=start)

    assert with_reuse.blocks[kind.__name__][1] == 0
    assert first_difference(with_reuse.program, without.program) is None


@pytest.mark.slow
def test_hidden_state_that_is_back_in_the_last_call_is_found_on_the_way(traced_again):
    check(Sets([Scales(at) for at in range(25)], [at % 2 for at in range(25)]).eval())

    assert len(traced_again()) == 1


class ScalesByOwnPlace(Block):
    def forward(self, x):
        return super().forward(x) * self.layer_idx


def test_blocks_that_are_taken_for_equal_by_mistake_are_found(traced_again, monkeypatch):
    monkeypatch.setattr(reuse._Known, "fits", lambda known, key, state: True)

    check(Model([ScalesByOwnPlace(2 if at < 7 else 3) for at in range(14)]).eval())

    assert len(traced_again()) == 1


class OmitsTheLast(Model):
    def forward(self, x):
        for block in self.blocks[:-1]:
            x = block(x)
        return x


class Rounds(Model):
    def forward(self, x):
        return super().forward(super().forward(x))


class Backwards(Model):
    def forward(self, x):
        for block in reversed(self.blocks):
            x = block(x)
        return x


@pytest.mark.slow
def test_without_a_last_call_every_block_is_traced(traced_again):
    check(OmitsTheLast([Block(at) for at in range(DEPTH)]).eval())

    assert "no late call of ['Block'] was compared" in traced_again()[0]


class Sliding(Block):
    def __init__(self, at):
        super().__init__(at)
        self.window = 2 if at % 3 else None

    def forward(self, x):
        y = super().forward(x)
        return y if self.window is None else y * self.window


@pytest.mark.slow
@pytest.mark.parametrize("kind", [Sliding, Block])
@pytest.mark.parametrize("model", [Rounds, Model, Backwards])
def test_equal_calls_are_not_traced_again(model, kind, traced_again, monkeypatch):
    seen = []
    active = BlockReuse.active
    monkeypatch.setattr(BlockReuse, "active", lambda blocks: (seen.append(blocks), active(blocks))[1])

    check(model([kind(at) for at in range(11)]).eval())

    assert not traced_again()
    assert seen[0].replayed >= 4, seen[0].report()


class TwoPlaces(nn.Module):
    """As CLIP: blocks of one class in two towers, each with its own last call."""

    def __init__(self):
        super().__init__()
        self.text = nn.ModuleList([Block(at) for at in range(DEPTH)])
        self.vision = nn.ModuleList([Block(at) for at in range(DEPTH)])

    def forward(self, x):
        y = x
        for block in self.text:
            x = block(x)
        for block in self.vision:
            y = block(y)
        return x + y


def test_blocks_of_one_class_at_two_places_each_have_a_last_call(traced_again, monkeypatch):
    seen = []
    active = BlockReuse.active
    monkeypatch.setattr(BlockReuse, "active", lambda blocks: (seen.append(blocks), active(blocks))[1])

    check(TwoPlaces().eval())

    assert not traced_again()
    assert seen[0].replayed >= DEPTH, seen[0].report()


def proofs(model, order):
    groups = groups_of(model)
    blocks = [model.blocks[at] for at in order]
    return [
        at
        for at, block in zip(order, blocks, strict=True)
        if groups[id(block)].likes[id(block)].needs_proof(block)
    ]


def test_the_last_of_each_kind_is_traced():
    assert proofs(Model([Sliding(at) for at in range(18)]), range(18)) == [15, 17]
    assert proofs(Model([Sliding(at) for at in range(18)]), range(17, -1, -1)) == [1, 0]


@pytest.mark.parametrize("count", [11, 23, 24, 35, 126])
def test_what_repeats_after_two_or_three_calls_is_not_missed(count):
    found = proofs(Model([nn.Sequential(nn.Linear(1, 1)) for _ in range(count)]), range(count))

    assert found[-1] == count - 1
    assert len(found) == (1 if count < 24 else 2)
    assert all((count - 1 - at) % 2 and (count - 1 - at) % 3 for at in found[:-1])
