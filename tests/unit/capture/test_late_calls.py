"""State that no walk can see is found by the last call of a kind, which is traced and compared."""

from __future__ import annotations

import sys

import pytest
from torch import nn

from fakexport.capture.block_reuse import BlockReuse, reuse
from fakexport.capture.block_reuse.block_groups import groups_of
from tests.unit.capture.reused_blocks import AUTO, DEPTH, Block, Model, check

LIMIT = sys.getrecursionlimit()


@pytest.fixture(autouse=True)
def limit():
    yield
    sys.setrecursionlimit(LIMIT)


class Sets(Model):
    """Keeps a number where no walk comes: Python has it in C."""

    def __init__(self, blocks, numbers):
        super().__init__(blocks)
        self.numbers = numbers

    def forward(self, x):
        for block, number in zip(self.blocks, self.numbers, strict=True):
            sys.setrecursionlimit(LIMIT + number)
            x = block(x)
        return x


def number():
    return sys.getrecursionlimit() - LIMIT


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
            sys.setrecursionlimit(LIMIT + number)
            y, z = block(x)
            x = y + z
        return x


class CountsItself(Block):
    """Every other run differs, and only runs are counted."""

    def forward(self, x):
        sys.setrecursionlimit(LIMIT + 1 - number())
        return super().forward(x) * (1 + number())


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


def test_hidden_state_of_the_block_itself_is_found(traced_again):
    check(
        Model([CountsItself(at) for at in range(DEPTH)]).eval(), prepare=lambda: sys.setrecursionlimit(LIMIT)
    )

    assert len(traced_again()) == 1


@pytest.mark.slow
def test_hidden_state_that_is_back_in_the_last_call_is_found_on_the_way(traced_again):
    check(Sets([Scales(at) for at in range(13)], [at % 2 for at in range(13)]).eval())

    assert len(traced_again()) == 1


class ScalesByOwnPlace(Block):
    def forward(self, x):
        return super().forward(x) * self.layer_idx


def test_blocks_that_are_taken_for_equal_by_mistake_are_found(traced_again, monkeypatch):
    monkeypatch.setattr(reuse._Known, "fits", lambda known, key, state: True)

    check(Model([ScalesByOwnPlace(2 if at < 8 else 3) for at in range(DEPTH + 2)]).eval())

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
    assert seen[0].replayed >= 5, seen[0].report()


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
    assert proofs(Model([Sliding(at) for at in range(12)]), range(12)) == [9, 11]
    assert proofs(Model([Sliding(at) for at in range(12)]), range(11, -1, -1)) == [1, 0]


@pytest.mark.parametrize("count", [11, 12, 23, 24, 126])
def test_what_repeats_after_two_or_three_calls_is_not_missed(count):
    found = proofs(Model([nn.Sequential(nn.Linear(1, 1)) for _ in range(count)]), range(count))

    assert found[-1] == count - 1
    assert len(found) == (1 if count < 12 else 2)
    assert all((count - 1 - at) % 2 and (count - 1 - at) % 3 for at in found[:-1])
