"""Whatever a program draws, and whatever it does to its generators, deferred values are the eager ones."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest
import torch
from torch import nn

from fakexport.emulation.fake import deferred_init, materialize_tensor
from tests.equality import assert_same_tensor

DTYPES = (torch.float32, torch.float64, torch.bfloat16, torch.float16)
SIZES = (0, 1, 2, 3, 7, 15, 16, 17, 33, 700)


class Drawing:
    """One random program; the same seed of `choose` gives the same program."""

    def __init__(self, seed: int) -> None:
        self.choose = random.Random(seed)
        self.generators = [torch.Generator().manual_seed(seed + 1), None]
        self.states: list[torch.Tensor] = []
        self.made: list[torch.Tensor] = []

    def run(self, steps: int = 25) -> list[torch.Tensor]:
        actions: list[Callable[[], None]] = [self.draw] * 8 + [self.fill] * 8 + [
            self.overwrite, self.reject, self.seed, self.save, self.go_back, self.fork, self.read
        ]  # fmt: skip
        for _ in range(steps):
            self.choose.choice(actions)()
        return self.made

    def draw(self) -> None:
        count, dtype = self.choose.choice(SIZES), self.choose.choice(DTYPES)
        generator = self.choose.choice(self.generators)
        match self.choose.randrange(5):
            case 0:
                made = torch.randn(count, dtype=dtype, generator=generator)
            case 1:
                made = torch.rand(count, dtype=dtype, generator=generator)
            case 2:
                made = torch.randint(self.choose.choice([5, 2**40]), (count,), generator=generator)
            case 3:
                made = torch.randperm(count, generator=generator)
            case _:
                made = torch.randn_like(torch.empty(count, 2, dtype=dtype).t())
        self.made.append(made)

    def fill(self) -> None:
        rows, columns = self.choose.randint(1, 5), self.choose.randint(1, 9)
        weight = torch.empty(rows, columns, dtype=self.choose.choice(DTYPES))
        target = self.choose.choice([weight, weight.t(), weight[:, ::2], weight[1:]])
        generator = self.choose.choice(self.generators)
        fill = self.choose.choice(
            [
                lambda: target.normal_(1.0, 2.0, generator=generator),
                lambda: target.uniform_(-1.0, 1.0, generator=generator),
                lambda: target.bernoulli_(0.3, generator=generator),
                lambda: target.random_(0, 100, generator=generator),
                lambda: target.exponential_(generator=generator),
                lambda: target.log_normal_(generator=generator),
            ]
        )
        weight.zero_()
        fill()
        self.made.append(weight)

    def overwrite(self) -> None:
        if self.made:
            weight = self.choose.choice(self.made)
            if weight.is_floating_point():
                weight.normal_()

    def reject(self) -> None:
        self.made.append(nn.init.trunc_normal_(torch.empty(self.choose.choice(SIZES) + 1), a=-0.5, b=0.5))
        self.made.append(torch.poisson(torch.full((3,), 4.0)))

    def seed(self) -> None:
        torch.manual_seed(self.choose.randrange(3))

    def save(self) -> None:
        self.states.append(torch.get_rng_state())

    def go_back(self) -> None:
        if self.states:
            torch.set_rng_state(self.choose.choice(self.states))

    def fork(self) -> None:
        with torch.random.fork_rng(devices=[]):
            self.draw()
            self.seed()
            self.fill()

    def read(self) -> None:
        if self.made and (last := self.made[-1]).numel() and last.is_floating_point():
            self.made.append(torch.full((2,), last.flatten()[0].item()))


@pytest.mark.parametrize("seed", range(25))
def test_drawn_values_are_eager_ones(seed: int) -> None:
    torch.manual_seed(7)
    expected = Drawing(seed).run()
    last = torch.randn(3)
    torch.manual_seed(7)
    drawing = Drawing(seed)
    made, end = deferred_init(lambda: (drawing.run(), torch.randn(3)))

    order = list(range(len(made)))
    random.Random(seed).shuffle(order)
    real = {index: materialize_tensor(made[index]) for index in order}

    for index, tensor in real.items():
        assert_same_tensor(tensor, expected[index], f"tensor {index}")
    assert torch.equal(materialize_tensor(end), last)
