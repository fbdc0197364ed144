"""Whatever a program does to its tensors, their replayed values are those of the program run for real."""

import copy
import random
from collections.abc import Callable

import pytest
import torch

from fakexport.emulation.fake.mode import fake_mode
from fakexport.emulation.history.recording import recording

Step = Callable[[list[torch.Tensor], random.Random], None]


def _any(tensors: list[torch.Tensor], draw: random.Random) -> torch.Tensor:
    return draw.choice(tensors)


def make(tensors: list[torch.Tensor], draw: random.Random) -> None:
    rows, columns = draw.randint(1, 4), draw.randint(1, 4)
    kind = draw.randrange(4)
    if kind == 0:
        tensors.append(torch.arange(float(rows * columns)).reshape(rows, columns))
    elif kind == 1:
        tensors.append(torch.full((rows, columns), draw.uniform(-2, 2)))
    elif kind == 2:
        tensors.append(torch.tensor([[draw.uniform(-1, 1) for _ in range(columns)] for _ in range(rows)]))
    else:
        tensors.append(torch.linspace(-1, 1, rows * columns).view(rows, columns))


def view(tensors: list[torch.Tensor], draw: random.Random) -> None:
    t = _any(tensors, draw)
    dim = draw.randrange(t.dim())
    views = [
        lambda: t.t() if t.dim() == 2 else t.unsqueeze(0),
        lambda: t.narrow(dim, 0, draw.randint(1, t.shape[dim])),
        lambda: t.unsqueeze(dim),
        lambda: t.select(dim, 0) if t.dim() > 1 else t,
        lambda: t.detach(),
        lambda: t.data,
        lambda: draw.choice(t.split(1, dim)),
        lambda: draw.choice(t.unbind(0)) if t.dim() > 1 else t.expand(2, *t.shape).select(0, 1),
        lambda: t.flatten(),
    ]
    tensors.append(draw.choice(views)())


def compute(tensors: list[torch.Tensor], draw: random.Random) -> None:
    a, b = _any(tensors, draw), _any(tensors, draw)
    results = [
        lambda: a + 1,
        lambda: a * b if a.shape == b.shape else a * 0.5,
        lambda: torch.cat([a, a], 0),
        lambda: torch.stack([a, a.clone()]).sum(0),
        lambda: a.sin().double().float(),
        lambda: torch.where(a > 0, a, -a),
        lambda: torch.sort(a, dim=-1)[0],
        lambda: copy.deepcopy(a),
        lambda: a.cumsum(0),
    ]
    tensors.append(draw.choice(results)())


def write(tensors: list[torch.Tensor], draw: random.Random) -> None:
    a, b = _any(tensors, draw), _any(tensors, draw)
    writes = [
        lambda: a.add_(1),
        lambda: a.mul_(0.5),
        lambda: a.fill_(draw.uniform(-1, 1)),
        lambda: a.zero_(),
        lambda: a.copy_(b) if a.shape == b.shape else a.neg_(),
        lambda: a.__setitem__(0, 3.0),
        lambda: a.masked_fill_(a > 0.5, 0.25),
        lambda: torch.clamp(a, -0.5, 0.5, out=a) if a.is_contiguous() else a.sub_(1),
        lambda: torch._foreach_add_([a.narrow(0, 0, 1)], 1.0),
        lambda: a.t_() if a.dim() == 2 else a.abs_(),
    ]
    draw.choice(writes)()


def assign(tensors: list[torch.Tensor], draw: random.Random) -> None:
    a, b = _any(tensors, draw), _any(tensors, draw)
    if draw.random() < 0.5:
        a.data = b.clone()
    else:
        a.set_(b.clone())


def read(tensors: list[torch.Tensor], draw: random.Random) -> None:
    t = _any(tensors, draw)
    reads = [
        lambda: t.sum().item(),
        lambda: float(bool((t > 0).any())),
        lambda: float(t.nonzero().shape[0]),
        lambda: float(t[t > 0].numel()),
        lambda: float(t.numpy().sum()),
        lambda: float(sum(torch.tensor(t.tolist()).flatten().tolist())),
    ]
    value = draw.choice(reads)()
    tensors.append(torch.full((2, 2), value))


def run(seed: int) -> list[torch.Tensor]:
    draw = random.Random(seed)
    tensors: list[torch.Tensor] = []
    make(tensors, draw)
    steps: list[Step] = [make, view, view, compute, compute, write, write, write, read, assign]
    for _ in range(draw.randint(3, 25)):
        draw.choice(steps)(tensors, draw)
        if draw.random() < 0.2:
            del tensors[
                draw.randrange(len(tensors)) : len(tensors) - 1
            ]  # Records must outlive their tensors.
    return tensors


def eager(seed: int) -> list[torch.Tensor] | None:
    """What the program gives for real, or None where torch refuses it (a write into an expanded tensor)."""
    try:
        return run(seed)
    except RuntimeError:
        return None


@pytest.mark.parametrize("first_seed", [0, 50, 100])
def test_replayed_values_are_the_eager_values(first_seed: int) -> None:
    for seed in range(first_seed, first_seed + 50):
        expected = eager(seed)
        if expected is None:
            continue

        with fake_mode() as mode, recording(mode) as recorded:
            fakes = run(seed)
        values = [recorded.constant_value(fake) for fake in fakes]

        for value, real in zip(values, expected, strict=True):
            assert value.stride() == real.stride(), seed
            torch.testing.assert_close(value, real, rtol=0, atol=0, equal_nan=True, msg=f"seed {seed}")
