"""What a block returns, and what the code around it does with that, is as it would be had it been traced."""

from __future__ import annotations

import functools

import numpy
import pytest
import torch
from torch import nn
from torch.overrides import TorchFunctionMode
from torch.utils.checkpoint import checkpoint

from fakexport import fake_mode
from fakexport.capture.capture import capture
from fakexport.devices import emulate
from tests.identity import first_difference
from tests.unit.capture.memo_models import AUTO, DEPTH, Block, Model, check, check_outcome, slow


class Returns(Block):
    """Returns what `result` makes of itself, its input and what it computed."""

    def __init__(self, at, result):
        super().__init__(at)
        self.result = result

    def forward(self, x):
        return self.result(self, x, super().forward(x))


class Uses(nn.Module):
    """Gives each result to `use`, which returns the next input."""

    def __init__(self, result, use):
        super().__init__()
        self.blocks = nn.ModuleList([Returns(at, result) for at in range(DEPTH)])
        self.use = use

    def forward(self, x):
        x = x * 1
        for block in self.blocks:
            x = self.use(block(x), x)
        return x


def added_in_place(result, x):
    return result.add_(1) + x


RESULTS = {
    "input": lambda block, x, y: x,
    "part of the input": lambda block, x, y: x[:, 1:],
    "input turned": lambda block, x, y: x.t(),
    "alias of the input": lambda block, x, y: x.view_as(x),
    "input without gradient": lambda block, x, y: x.detach(),
    "same dtype": lambda block, x, y: x.to(x.dtype),
    "parameter": lambda block, x, y: block.norm.weight,
    "part of a parameter": lambda block, x, y: block.norm.weight[1:],
    "parameter turned": lambda block, x, y: block.up.weight.t(),
    "part of what it computed": lambda block, x, y: y[:, :4],
    "expanded": lambda block, x, y: y.sum(-1, keepdim=True).expand(-1, 8),
    "computed": lambda block, x, y: y,
    "without gradient": lambda block, x, y: y.detach(),
    "complex": lambda block, x, y: torch.view_as_complex(y.reshape(-1, 4, 2)).conj(),
    "negative": lambda block, x, y: torch.view_as_complex(y.reshape(-1, 4, 2)).conj().imag,
    "doubled": lambda block, x, y: y.double(),
}


def as_facts(result, x):
    """Asks everything that code may ask of a tensor without its value."""
    facts = (
        result._is_view(),
        result.is_leaf,
        result.requires_grad,
        result.grad_fn is None,
        result.is_conj(),
        result.is_neg(),
        result.is_contiguous(),
        result.is_inference(),
        result.untyped_storage()._cdata == x.untyped_storage()._cdata,
        result is x,
        result._version > 0,
    )
    number = sum(fact << at for at, fact in enumerate(facts))
    return x + number


def resolved(result, x):
    return x + result.resolve_conj().resolve_neg().real.sum()


@pytest.mark.slow
@pytest.mark.parametrize("use", [as_facts, added_in_place, resolved])
@pytest.mark.parametrize("result", RESULTS.values(), ids=RESULTS)
def test_a_result_is_what_it_would_be(result, use):
    check_outcome(Uses(result, use).eval())


@pytest.mark.slow
@pytest.mark.parametrize("result", ["part of the input", "parameter turned", "alias of the input"])
def test_a_view_without_gradients_can_be_written_to(result):
    model = Uses(RESULTS[result], lambda result, x: result.add_(1).sum() + x).eval()

    check(model.requires_grad_(False))


def shared_list(block, x, y):
    found = [y]
    return found, found


class TakesList(Block):
    def forward(self, x, kept):
        return super().forward(x), kept


class Named(dict):
    pass


MANY = {
    "the same twice": (lambda block, x, y: (y, y), lambda r, x: r[0] * (2 if r[0] is r[1] else 3)),
    "two aliases": (lambda block, x, y: (y, y.view(-1)), lambda r, x: r[0] + r[1].add_(1).view_as(r[0])),
    "one memory": (
        lambda block, x, y: tuple(y.split(4, -1)),
        lambda r, x: torch.cat(
            [r[0], r[1] * (2 if r[0].untyped_storage()._cdata == r[1].untyped_storage()._cdata else 3)], -1
        ),
    ),
    "alias of a part": (lambda block, x, y: (y * 2, y[:1]), lambda r, x: r[0] + r[1]),
    "input and result": (lambda block, x, y: (x, y), lambda r, x: r[1] * (2 if r[0] is x else 3)),
    "one list twice": (shared_list, lambda r, x: r[0][0] * (2 if r[0] is r[1] else 3)),
    "number": (lambda block, x, y: (y, x.shape[0]), lambda r, x: r[0] * r[1]),
    "nothing": (lambda block, x, y: (y, None), lambda r, x: r[0] + (r[1] is None)),
    "dictionary": (lambda block, x, y: {"b": y, "a": x}, lambda r, x: r["b"] + r["a"]),
    "own class": (lambda block, x, y: Named(y=y), lambda r, x: r["y"]),
}


SOONEST_OF_MANY = ("two aliases", "one memory", "input and result", "one list twice", "number")


@pytest.mark.parametrize("dynamic", [None, *slow(AUTO)], ids=["static", "auto"])
@pytest.mark.parametrize(
    ("result", "use"),
    [
        case if name in SOONEST_OF_MANY else pytest.param(*case, marks=pytest.mark.slow)
        for name, case in MANY.items()
    ],
    ids=MANY,
)
def test_several_results_are_what_they_would_be(result, use, dynamic):
    check_outcome(Uses(result, use).eval(), dynamic=dynamic)


class Given(nn.Module):
    """Blocks that are given a list, return it, and whose caller relies on its being that list."""

    def __init__(self):
        super().__init__()
        self.blocks = nn.ModuleList([TakesList(at) for at in range(DEPTH)])

    def forward(self, x):
        kept = [x]
        for block in self.blocks:
            x, returned = block(x, kept)
            returned[0] = x * 2
        return kept[0]


@pytest.mark.slow
def test_a_list_that_is_returned_is_the_same_list():
    check(Given().eval())


class Writes(nn.Module):
    """Writes to what a block took or returned, after the block."""

    def __init__(self, write):
        super().__init__()
        self.blocks = nn.ModuleList([Block(at) for at in range(DEPTH)])
        self.write = write

    def forward(self, x):
        x = x * 1
        for block in self.blocks:
            y = block(x)
            self.write(x, y)
            x = x + y
        return x


WRITES = {
    "its input": lambda x, y: x.add_(1),
    "its result": lambda x, y: y.mul_(2),
    "part of its result": lambda x, y: y[:1].zero_(),
    "data of its result": lambda x, y: y.data.add_(1),
    "result into input": lambda x, y: x.copy_(y),
    "shape": lambda x, y: y.unsqueeze_(0).squeeze_(0),
}


@pytest.mark.slow
@pytest.mark.parametrize("dynamic", [None, AUTO], ids=["static", "auto"])
@pytest.mark.parametrize("write", WRITES.values(), ids=WRITES)
def test_what_is_written_after_a_block_is_the_same(write, dynamic):
    check_outcome(Writes(write).eval(), dynamic=dynamic)


class AsksVersion(Model):
    """Writes to each result after it asked how often that was done before."""

    def forward(self, x):
        for block in self.blocks:
            y = block(x)
            written = y._version
            x = y.add_(1) * (1 + written)
        return x


class Turns(Model):
    def forward(self, x):
        for block in self.blocks:
            x = block(x).t_().t()
        return x


@pytest.mark.slow
@pytest.mark.parametrize("model", [AsksVersion, Turns])
def test_a_result_is_as_it_was_before_the_caller_changed_it(model, traced_again):
    check(model([Block(at) for at in range(DEPTH)]).eval().requires_grad_(False))

    assert not traced_again()


class Collects(nn.Module):
    """Keeps what all blocks return, in a list, a dictionary and an object."""

    def __init__(self):
        super().__init__()
        self.blocks = nn.ModuleList([Block(at) for at in range(DEPTH)])

    def forward(self, x):
        states, by_number = [x], {}
        for at, block in enumerate(self.blocks):
            x = block(x)
            states.append(x)
            by_number[at] = x.mean()
        return {"last": x, "states": tuple(states), "means": by_number}


@pytest.mark.parametrize("dynamic", [None, *slow(AUTO)], ids=["static", "auto"])
def test_results_that_are_kept_are_the_same(dynamic):
    check(Collects().eval(), dynamic=dynamic)


class Cache:
    def __init__(self):
        self.keys = {}

    def update(self, key, at):
        self.keys[at] = torch.cat([self.keys[at], key]) if at in self.keys else key
        return self.keys[at]


class Cached(Block):
    def forward(self, x, cache):
        return super().forward(x) + cache.update(self.up(x), self.layer_idx).sum(0)[:8]


class WithCache(nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks = nn.ModuleList([Cached(at % 3) for at in range(DEPTH)])

    def forward(self, x):
        cache = Cache()
        for block in self.blocks:
            x = block(x, cache)
        return x


def test_a_cache_is_filled_as_by_every_block():
    check(WithCache().eval())


class Checkpointed(Model):
    def forward(self, x):
        for at, block in enumerate(self.blocks):
            x = checkpoint(block, x, use_reentrant=False) if at % 2 else block(x)
        return x


def test_checkpointed_blocks_are_the_same():
    check_outcome(Checkpointed([Block(at) for at in range(DEPTH)]).train())


class Counts(TorchFunctionMode):
    """A mode of the model itself, which keeps something."""

    def __init__(self):
        super().__init__()
        self.calls = 0

    def __torch_function__(self, function, types, args=(), kwargs=None):
        result = function(*args, **(kwargs or {}))
        if function is torch.relu:
            self.calls += 1
            return result * 2 if self.calls == DEPTH - 1 else result
        return result


class InMode(Model):
    def forward(self, x):
        with Counts():
            for block in self.blocks:
                x = block(x)
        return x


def test_a_mode_of_the_model_is_asked_by_every_block():
    check(InMode([Block(at) for at in range(DEPTH)]).eval())


class Branches(nn.Module):
    """Blocks inside of a control-flow operator, whose branches are graphs of their own."""

    def __init__(self):
        super().__init__()
        self.blocks = nn.ModuleList([Block(at) for at in range(DEPTH)])

    def run(self, x):
        for block in self.blocks:
            x = block(x)
        return x

    def forward(self, x):
        return torch.cond(x.sum() > 0, lambda x: self.run(x), lambda x: self.run(x) * 2, (self.run(x),))


class BranchIn(Block):
    def forward(self, x):
        return torch.cond(x.sum() > 0, lambda x: x + 1, lambda x: x * 2, (super().forward(x),))


@pytest.mark.parametrize("make", [*slow(Branches), lambda: Model([BranchIn(at) for at in range(DEPTH)])])
def test_branches_are_traced(make):
    check_outcome(make().eval())


class Annotates(Model):
    def forward(self, x):
        for at, block in enumerate(self.blocks):
            with torch.fx.traceback.annotate({"stage": at // 3}):
                x = block(x)
        return x


@pytest.mark.slow
def test_annotations_are_of_their_block():
    check(Annotates([Block(at) for at in range(DEPTH)]).eval())


def test_hooks_of_all_modules_run_for_every_block():
    calls = []

    def hook(module, args, result):
        if isinstance(module, nn.LayerNorm):
            calls.append(1)
            return result * (1 + len(calls) % DEPTH)  # Each call of the model has the same.
        return None

    handle = nn.modules.module.register_module_forward_hook(hook)
    try:
        check(Model([Block(at) for at in range(DEPTH)]).eval(), prepare=calls.clear)
    finally:
        handle.remove()


@pytest.mark.slow
def test_what_hooks_of_all_modules_keep_in_their_defaults_is_seen():
    calls = []

    def hook(module, args, result, calls=calls):
        if isinstance(module, Block):
            calls.append(1)
            return result * 2 if len(calls) % DEPTH == DEPTH - 2 else result
        return None

    handle = nn.modules.module.register_module_forward_hook(hook)
    try:
        check(Model([Block(at) for at in range(DEPTH)]).eval(), prepare=calls.clear)
    finally:
        handle.remove()


@functools.cache
def kept():
    return []


class KeptByCache(Block):
    def forward(self, x):
        kept().append(1)
        return super().forward(x) * (2 if len(kept()) == DEPTH - 1 else 1)


def test_what_a_cached_function_keeps_is_seen():
    check(Model([KeptByCache(at) for at in range(DEPTH)]).eval(), prepare=lambda: kept().clear())


class DrawsLocally(Block):
    def forward(self, x):
        import random

        return super().forward(x) * random.randint(0, 9)


class DrawsFromNumpy(Block):
    def forward(self, x):
        return super().forward(x) * int(numpy.random.randint(0, 9))


class Seeds(Block):
    """Changes the generator of torch and asks what it was."""

    def forward(self, x):
        seed = torch.initial_seed()
        torch.manual_seed(seed + 1)
        return super().forward(x) * seed


def seeded():
    import random

    random.seed(0)
    numpy.random.seed(0)
    torch.manual_seed(0)


@pytest.mark.parametrize("kind", [DrawsLocally, *slow(DrawsFromNumpy, Seeds)], ids=lambda kind: kind.__name__)
def test_random_numbers_of_python_are_drawn_by_every_block(kind):
    check_outcome(Model([kind(at) for at in range(DEPTH)]).eval(), prepare=seeded)


class Late(Block):
    """The second call is the first to use an operator, whose sizes fake mode then computes."""

    def __init__(self, at):
        super().__init__(at)
        self.is_late = at > 0

    def forward(self, x):
        y = super().forward(x)
        if self.is_late:
            y = torch.cat([torch.roll(y, 1, -1)[:, :4], y.flip(-1)[:, 4:]], -1).repeat(2, 1)[: x.shape[0]]
        return y


def test_an_operator_that_is_new_leaves_what_it_leaves_once():
    check(Model([Late(at) for at in range(DEPTH)]).eval(), dynamic=AUTO)


class Writes8(Block):
    """Writes what most blocks have already."""

    def __init__(self, at):
        super().__init__(at)
        self.note = None if at == DEPTH - 3 else 8

    def forward(self, x):
        self.note = 8
        return super().forward(x)


class SumsNotes(Model):
    def forward(self, x):
        return super().forward(x) * sum(block.note or 0 for block in self.blocks)


def test_an_attribute_that_is_written_is_written_by_every_block():
    model = SumsNotes([Writes8(at) for at in range(DEPTH)]).eval()

    def prepare():
        for at, block in enumerate(model.blocks):
            block.note = None if at == DEPTH - 3 else 8

    check(model, prepare=prepare)


class Scales(Block):
    def __init__(self, at):
        super().__init__(at)
        self.by = 0.0

    def forward(self, x):
        return super().forward(x) * self.by


def test_the_sign_of_zero_is_seen():
    model = Model([Scales(at) for at in range(DEPTH)]).eval()
    model.blocks[DEPTH - 3].by = -0.0

    check(model)


class AsksOrigin(Model):
    def forward(self, x):
        for block in self.blocks:
            x = block(x)
            x = x * (2 if "Add" in type(x.grad_fn).__name__ else 3)
        return x


def test_the_origin_of_a_result_is_what_computed_it():
    check(AsksOrigin([Block(at) for at in range(DEPTH)]).eval())


class Patches(Model):
    """Replaces a function of torch around one block."""

    def forward(self, x):
        for at, block in enumerate(self.blocks):
            stock = torch.relu
            torch.relu = torch.tanh if at == DEPTH - 3 else stock
            try:
                x = block(x)
            finally:
                torch.relu = stock
        return x


@pytest.mark.slow
def test_a_function_of_torch_that_the_model_replaces_is_seen():
    check(Patches([Block(at) for at in range(DEPTH)]).eval())


class KeepsResult(Block):
    def __init__(self, at):
        super().__init__(at)
        self.last = None

    def forward(self, x):
        self.last = super().forward(x)
        return self.last


class SumsKept(Model):
    def forward(self, x):
        super().forward(x)
        result = sum(block.last for block in self.blocks)
        for block in self.blocks:
            block.last = None
        return result


@pytest.mark.slow
def test_a_result_that_a_block_keeps_is_kept():
    check(SumsKept([KeepsResult(at) for at in range(DEPTH)]).eval())


@pytest.mark.slow
def test_blocks_on_several_devices_are_the_same(monkeypatch):
    class OnDevices(Model):
        def forward(self, x):
            for at, block in enumerate(self.blocks):
                x = block(x.to("cuda:1" if at >= 5 else "cuda:0"))
            return x

    def made():
        model = OnDevices([Block(at) for at in range(DEPTH)]).eval()
        for at, block in enumerate(model.blocks):
            block.to("cuda:1" if at >= 5 else "cuda:0")
        return model, (torch.ones(3, 8, device="cuda:0"),)

    programs = []
    for switch in ("1", "0"):
        monkeypatch.setenv("FAKEXPORT_SPEED", switch)
        with emulate("2xH100"), fake_mode():
            model, args = made()
            programs.append(capture(model, args).program)

    assert first_difference(*programs) is None


class Asks(Block):
    def forward(self, x):
        y = super().forward(x)
        return y * 2 if x.shape[0] > 2 else y


class Scripted(Block):
    def forward(self, x):
        return torch.ops.aten.gelu(super().forward(x)) + torch.special.erf(x)


class Prunes(Block):
    def __init__(self, at):
        super().__init__(at)
        nn.utils.parametrizations.weight_norm(self.up)


SHARED = nn.Buffer(torch.ones(8))


class SharesBuffer(Block):
    def __init__(self, at):
        super().__init__(at)
        self.shared = SHARED

    def forward(self, x):
        return super().forward(x) + self.shared


class Copies(Block):
    """Asks a copy of itself for the position."""

    def forward(self, x):
        import copy

        return super().forward(x) * (1 + getattr(copy.copy(self), "layer_idx", 50))


class AsksObject(Block):
    def forward(self, x):
        return super().forward(x) * (1 + object.__getattribute__(self, "layer_idx"))


@pytest.mark.parametrize("dynamic", [None, *slow(AUTO)], ids=["static", "auto"])
@pytest.mark.parametrize(
    "kind", [Asks, Scripted, Prunes, SharesBuffer, Copies, AsksObject], ids=lambda kind: kind.__name__
)
def test_what_a_block_is_made_of_is_the_same(kind, dynamic):
    check(Model([kind(at) for at in range(DEPTH)]).eval(), dynamic=dynamic)


class Draws(Model):
    def __init__(self, blocks):
        super().__init__(blocks)
        self.generator = torch.Generator()

    def forward(self, x):
        return super().forward(x) + torch.rand(8, generator=self.generator)


@pytest.mark.slow
def test_an_object_of_torch_is_the_same_wherever_it_is():
    check(Draws([Block(at) for at in range(DEPTH)]).eval())
