"""Changes that only the first call makes: in hooks, methods, closures and caches.

Each model is called twice in eager mode: the program of the first call is wrong for the second one.
"""

from __future__ import annotations

import functools

import pytest
import torch
from torch import nn

import fakexport as fe
from fakexport.exporting.capture.lost_writes import LostWriteError

X = torch.arange(8.0).reshape(2, 4)


class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(4, 4)

    def forward(self, x):
        return self.linear(x)


class RemovesItsHook(Layer):
    def __init__(self):
        super().__init__()
        self.handle = self.linear.register_forward_hook(self.doubled)

    def doubled(self, module, args, result):
        self.handle.remove()
        return result * 2


class AddsAHook(Layer):
    def forward(self, x):
        result = self.linear(x)
        if not self.linear._forward_hooks:
            self.linear.register_forward_hook(lambda module, args, result: result * 2)
        return result


class ReplacesForward(Layer):
    def forward(self, x):
        self.forward = self.later
        return self.linear(x) * 2

    def later(self, x):
        return self.linear(x)


class ReplacesForwardOfAPart(nn.Sequential):
    def __init__(self):
        super().__init__(ReplacesForward(), ReplacesForward())


class Rotates(Layer):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(4, 4) for _ in range(3))

    def forward(self, x):
        first, *rest = self.layers
        self.layers = nn.ModuleList([*rest, first])
        return first(x)


class ExchangesParameters(Layer):
    def __init__(self):
        super().__init__()
        self.weights = nn.ParameterList(torch.full((4,), 1.0 + at) for at in range(2))

    def forward(self, x):
        one, other = self.weights
        self.weights = nn.ParameterList([other, one])
        return self.linear(x) * one


class LeavesGradientsOff(Layer):
    def forward(self, x):
        result = self.linear(x)
        torch.set_grad_enabled(False)
        return result * 2 if result.requires_grad else result


def remembers_in_a_closure():
    seen = set()

    class Remembers(Layer):
        def forward(self, x):
            result = self.linear(x) * (1 if "seen" in seen else 2)
            seen.add("seen")
            return result

    return Remembers()


def counts_in_a_hook():
    counted = [0]

    def hook(module, args, result):
        counted[0] = 1
        return result * counted[0]

    def before(module, args):
        return (args[0] * (2 if counted[0] else 1),)

    model = Layer()
    model.linear.register_forward_hook(hook)
    model.linear.register_forward_pre_hook(before)
    return model


def writes_to_a_cached_mask():
    @functools.lru_cache
    def mask(size):
        return torch.ones(size)

    class Masks(Layer):
        def forward(self, x):
            result = self.linear(x) * mask(4)
            mask(4).mul_(0.5)
            return result

    return Masks()


CHANGED = [
    RemovesItsHook,
    AddsAHook,
    ReplacesForward,
    ReplacesForwardOfAPart,
    Rotates,
    ExchangesParameters,
    LeavesGradientsOff,
    remembers_in_a_closure,
    counts_in_a_hook,
    writes_to_a_cached_mask,
]


@pytest.fixture(autouse=True)
def grad_mode():
    with torch.enable_grad():
        yield


@pytest.mark.parametrize("make", CHANGED, ids=lambda make: make.__name__)
def test_a_change_by_the_first_call_is_an_error(make):
    model = make()
    assert not torch.equal(model(X), model(X))
    torch.set_grad_enabled(True)

    with pytest.raises(LostWriteError):
        fe.export(make(), (X,))


class CachesAMask(Layer):
    def __init__(self):
        super().__init__()
        self.mask = functools.lru_cache(lambda size: torch.ones(size) * 2)

    def forward(self, x):
        return self.linear(x) * self.mask(x.shape[-1])


def keeps_a_mask_in_a_closure():
    masks = {}

    class Keeps(Layer):
        def forward(self, x):
            if "mask" not in masks:
                masks["mask"] = torch.ones(4) * 2
            return self.linear(x) * masks["mask"]

    return Keeps()


@pytest.mark.parametrize("make", [CachesAMask, keeps_a_mask_in_a_closure], ids=lambda make: make.__name__)
def test_a_cached_value_of_the_trace_is_in_the_program_and_not_in_the_model(make):
    model = make()

    program = fe.export(model, (X,))

    bound = fe.bind(program, dict(model.state_dict())).module()
    assert torch.equal(bound(X), model(X))
    assert not fe.is_fake(model(X))


def test_a_grad_mode_that_forward_leaves_is_reported_and_undone():
    class Leaves(Layer):
        def forward(self, x):
            torch.set_grad_enabled(False)
            return self.linear(x)

    report = fe.check(lambda: (Leaves(), (X,)))

    assert [found.code for found in report.diagnostics] == ["FE910"]
    fe.export(Leaves(), (X,))
    assert torch.is_grad_enabled()
