"""`deferred_init` and the replay of what it recorded, against eager construction under the same seed."""

from __future__ import annotations

import gc
import importlib
import weakref
from typing import Any

import pytest
import torch
from torch import nn

from fakexport._torch.random.rng_consumption import Drawn
from fakexport.emulation.devices import emulate
from fakexport.emulation.fake import (
    MaterializeError,
    deferred_init,
    fake_mode,
    is_deferred,
    is_fake,
    materialize_module,
    materialize_tensor,
)
from tests.equality import assert_same_module, assert_same_tensor

# The face of the room has functions of these names.
recording_module = importlib.import_module("fakexport.emulation.history.recording")
replay_module = importlib.import_module("fakexport.emulation.history.replay")


class Block(nn.Module):
    """Draws, overwrites, ties, views, in-place chains, a read, and a few ways to hold a tensor."""

    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(5, 7)
        self.norm = nn.BatchNorm1d(7)
        self.head = nn.Linear(7, 5, bias=False)
        self.head.weight = nn.Parameter(self.fc.weight.t())
        self.tied = self.fc.bias
        nn.init.trunc_normal_(self.fc.weight, std=0.02)
        with torch.no_grad():
            self.fc.bias.normal_().mul_(2).add_(1)
            self.norm.weight[2:4].uniform_()
        self.register_buffer("table", torch.arange(12.0).reshape(3, 4).t(), persistent=False)
        self.scale = torch.tensor(1.0 / self.table.sum().item())
        self.masks = [torch.tril(torch.ones(3, 3)), {"wide": torch.eye(2)}]
        self.pair = (torch.zeros(2), 3)
        self.frozen = nn.Parameter(torch.randn(3).half(), requires_grad=False)


@pytest.fixture(autouse=True)
def seed() -> None:
    torch.manual_seed(0)


def both(factory: Any) -> tuple[Any, Any]:
    """The eager module and the deferred one, under one seed."""
    torch.manual_seed(0)
    eager = factory()
    torch.manual_seed(0)
    return eager, deferred_init(factory)


@pytest.mark.parametrize("factory", [Block, lambda: Block().double().to(torch.bfloat16)])
def test_a_materialised_module_equals_the_eager_one(factory) -> None:
    eager, model = both(factory)
    assert is_deferred(model)
    assert all(is_fake(p) for p in model.parameters())
    assert not is_deferred(eager)
    materialize_module(model)
    assert not is_deferred(model)
    assert_same_module(model, eager)


def test_the_generator_is_left_where_eager_construction_leaves_it() -> None:
    eager = [Block(), redrawn(), Block()]
    expected = torch.randn(3)
    torch.manual_seed(0)
    deferred = [deferred_init(Block), deferred_init(redrawn), deferred_init(Block)]
    assert torch.equal(torch.randn(3), expected)
    torch.manual_seed(7)
    for model, other in ((deferred[2], eager[2]), (deferred[0], eager[0])):
        materialize_module(model)
        assert_same_module(model, other)
    after = torch.randn(3)
    torch.manual_seed(7)
    assert torch.equal(torch.randn(3), after)


@pytest.mark.parametrize("order", [(0, 1, 2), (2, 1, 0), (1,), (2, 0)])
def test_any_order_and_any_subset_gives_the_same_bits(order: tuple[int, ...]) -> None:
    def factory() -> nn.Module:
        return nn.Sequential(nn.Linear(9, 9), nn.Conv1d(3, 5, 3), nn.Embedding(10, 3, padding_idx=1))

    eager, model = both(factory)
    for index in order:
        materialize_module(model[index])
        assert_same_module(model[index], eager[index])
    assert is_deferred(model) == (len(order) < 3)


def test_numbers_that_only_drawing_tells_are_drawn_in_any_order() -> None:
    class Truncated(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first = nn.Parameter(nn.init.trunc_normal_(torch.empty(50), a=-1.0, b=1.0))
            self.second = nn.Parameter(nn.init.trunc_normal_(torch.empty(5), a=-1.0, b=1.0))
            self.third = nn.Parameter(torch.empty(6).exponential_())
            self.fourth = nn.Parameter(torch.randn(7))
            self.fifth = nn.Parameter(torch.randn(3) + torch.poisson(torch.full((3,), 4.0)))

    eager, model = both(Truncated)
    for name in ("fifth", "second", "fourth", "first", "third"):
        assert_same_tensor(materialize_tensor(getattr(model, name)), getattr(eager, name), name)


def redrawn() -> torch.Tensor:
    return nn.init.trunc_normal_(torch.empty(100), a=-1.0, b=1.0)


def test_a_deferred_call_goes_on_after_many_numbers_that_only_drawing_tells(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(replay_module, "_MOST_DRAWN", 99)
    eager = [redrawn(), torch.randn(3)]
    torch.manual_seed(0)
    with pytest.warns(RuntimeWarning, match=r"would have to draw 10[03] numbers\. Seed the generator"):
        deferred = [deferred_init(redrawn), deferred_init(torch.randn, 3)]
    assert torch.equal(materialize_tensor(deferred[1]), eager[1])
    assert torch.equal(materialize_tensor(deferred[0]), eager[0])


def test_pairs_of_normal_numbers_are_kept_across_operations() -> None:
    def factory() -> list[torch.Tensor]:
        return [torch.randn(3), torch.rand(2), torch.randn(20), torch.randn(2), torch.randn(5)]

    eager, deferred = both(factory)
    for index in (4, 3, 1, 2, 0):
        assert torch.equal(materialize_tensor(deferred[index]), eager[index]), index


def test_seeding_saving_and_forking_inside_mean_what_they_mean_in_eager_mode() -> None:
    def factory() -> list[torch.Tensor]:
        made = [torch.randn(3)]
        state = torch.get_rng_state()
        made.append(torch.randn(3))
        torch.set_rng_state(state)
        made.append(torch.randn(3))
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(5)
            made.append(torch.randn(3))
        made.append(torch.randn(3))
        for _ in range(2):
            torch.manual_seed(5)
            made.append(torch.randn(3))
        return made

    eager, deferred = both(factory)
    after = torch.randn(2)
    for one, other in zip(reversed(deferred), reversed(eager), strict=True):
        assert torch.equal(materialize_tensor(one), other)
    factory()
    assert torch.equal(torch.randn(2), after)


def test_a_generator_argument_is_honoured_even_after_its_death() -> None:
    def factory() -> list[torch.Tensor]:
        generator = torch.Generator()
        generator.manual_seed(11)
        made = [torch.randn(3), torch.randn(4, generator=generator)]
        made.append(torch.empty(30).uniform_(generator=generator))
        generator.manual_seed(11)
        made.append(nn.init.trunc_normal_(torch.empty(9), generator=generator))
        return made

    eager, deferred = both(factory)
    gc.collect()
    for index in (3, 2, 0, 1):
        assert torch.equal(materialize_tensor(deferred[index]), eager[index]), index


def test_a_generator_from_outside_is_left_where_eager_leaves_it() -> None:
    one, other = torch.Generator().manual_seed(3), torch.Generator().manual_seed(3)
    eager = torch.randn(33, generator=one)
    deferred = deferred_init(torch.randn, 33, generator=other)
    assert torch.equal(torch.randn(2, generator=one), torch.randn(2, generator=other))
    other.manual_seed(99)
    assert torch.equal(materialize_tensor(deferred), eager)


def test_a_draw_into_a_real_tensor_takes_its_turn() -> None:
    def factory(real: torch.Tensor) -> list[torch.Tensor]:
        first = torch.randn(3)
        real.normal_()
        return [first, torch.randn(3)]

    eager_real, real = torch.zeros(20), torch.zeros(20)
    eager = factory(eager_real)
    torch.manual_seed(0)
    deferred = deferred_init(factory, real)
    assert torch.equal(real, eager_real)
    assert [torch.equal(materialize_tensor(d), e) for d, e in zip(deferred, eager, strict=True)] == [True] * 2


def test_a_read_of_a_random_number_is_what_eager_reads() -> None:
    def factory() -> nn.Module:
        width = int(torch.randint(2, 50, ()).item())
        return nn.Linear(width, width)

    eager, model = both(factory)
    materialize_module(model)
    assert_same_module(model, eager)


def test_fake_mode_draws_nothing() -> None:
    expected = torch.randn(3)
    torch.manual_seed(0)
    with fake_mode():
        nn.Linear(3, 3)
    assert torch.equal(torch.randn(3), expected)


def test_a_module_of_one_virtual_gpu_has_the_numbers_of_the_cpu() -> None:
    def factory(device: str) -> nn.Module:
        return nn.Sequential(nn.Linear(3, 3, device=device), nn.Linear(3, 3, device=device))

    eager = factory("cpu")
    torch.manual_seed(0)
    with emulate("H100"):
        model = deferred_init(factory, "cuda")
    materialize_module(model, device="cpu")
    assert_same_module(model, eager)


def test_a_deferred_module_is_changed_in_another_call() -> None:
    def change(model: nn.Module) -> nn.Module:
        nn.init.normal_(model.fc.weight)
        return nn.Sequential(model.half(), nn.Linear(2, 2))

    eager = change(Block())
    torch.manual_seed(0)
    model = deferred_init(change, deferred_init(Block))
    materialize_module(model)
    assert_same_module(model, eager)


def test_a_lazy_module_is_made_by_its_dry_run_and_stays_lazy_without() -> None:
    def factory() -> nn.Module:
        lazy = nn.Sequential(nn.LazyLinear(4), nn.LazyBatchNorm1d())
        lazy(torch.ones(2, 3))
        return lazy

    eager, model = both(factory)
    materialize_module(model)
    assert_same_module(model, eager)
    assert type(model[0]) is nn.Linear

    model = deferred_init(nn.LazyLinear, 4)
    materialize_module(model)
    assert type(model.weight) is nn.UninitializedParameter
    model(torch.ones(2, 3))
    assert model.weight.shape == (4, 3)


class Scaled(nn.Parameter):
    def __new__(cls, data: torch.Tensor, scale: float) -> Scaled:
        return super().__new__(cls, data)

    def __init__(self, data: torch.Tensor, scale: float) -> None:
        self.scale = scale


def test_classes_of_parameters_and_gradient_hooks_survive() -> None:
    def factory() -> nn.Module:
        model = nn.Linear(2, 1, bias=False)
        model.weight = Scaled(torch.randn(1, 2), 2.0)
        model.register_buffer("scaled", (model.weight * model.weight.scale).detach())
        model.weight.register_hook(lambda gradient: gradient * 3)
        return model

    eager, model = both(factory)
    assert isinstance(model.weight, Scaled)
    materialize_module(model)
    assert_same_module(model, eager)
    assert model.weight.scale == 2.0
    model(torch.ones(1, 2)).backward()
    assert model.weight.grad is not None
    assert model.weight.grad.tolist() == [[3.0, 3.0]]


def test_what_is_materialised_frees_its_history() -> None:
    model = deferred_init(Block)
    history = weakref.ref(model.fc.weight)
    gc.disable()
    try:
        materialize_module(model)
        assert history() is None
    finally:
        gc.enable()


def test_a_count_that_torch_does_not_keep_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recording_module, "drawn_by", lambda *_: Drawn(words=7))
    made = deferred_init(torch.randn, 40)

    with pytest.raises(MaterializeError, match="drew more or fewer random numbers than fakexport"):
        materialize_tensor(made)


def test_a_fake_mode_after_many_numbers_that_were_not_drawn_leaves_the_place(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    eager = [redrawn(), torch.randn(3)]
    torch.manual_seed(0)
    monkeypatch.setattr(replay_module, "_MOST_DRAWN", 99)
    with pytest.warns(RuntimeWarning):
        first = deferred_init(redrawn)
    with fake_mode():
        torch.randn(7).sum().item()
    second = deferred_init(torch.randn, 3)  # The read above drew what leads there: no warning any more.
    assert torch.equal(materialize_tensor(second), eager[1])
    assert torch.equal(materialize_tensor(first), eager[0])


def test_tensors_in_containers_are_deferred_and_watched_too() -> None:
    model = deferred_init(Block)
    materialize_module(model, check_fn=lambda part: part is not model)
    for registry in (model._parameters, model._buffers):
        registry.update({name: torch.ones(1) for name in registry})
    model.scale, model.pair = torch.ones(()), ()
    assert is_deferred(model)  # What stands in `masks` is fake still.

    model.masks[0].data = torch.empty_like(model.masks[0])
    with pytest.raises(
        MaterializeError, match=r"masks\[0\] cannot be materialized: it was assigned different data"
    ):
        materialize_module(model)
