"""Blocks with a cache: each takes the layer at its own position, and nothing else that differs is missed."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from tests.unit.capture.memo_models import DEPTH, StepBlock, check, check_outcome, slow

cache_utils = pytest.importorskip("transformers.cache_utils")

FIVE = 5
TABLE = {at: 1.0 + at for at in range(DEPTH)}


class Block(StepBlock):
    """Attention without queries: what the cache returns is summed."""

    def forward(self, x, cache):
        made = self.up(x)
        keys, values = cache.update(made, made * 2, self.layer_idx)
        return self.step(self, x + (keys * values).sum(2, keepdim=True), cache)


class Model(nn.Module):
    """Blocks, and a cache that is made from plain tensors, as a program takes it."""

    def __init__(self, step, order=range(DEPTH), make=cache_utils.DynamicLayer, prepare=lambda model: None):
        super().__init__()
        self.blocks = nn.ModuleList(Block(at, step) for at in order)
        self.make = make
        prepare(self)

    def forward(self, x, keys):
        layers = [self.make() for _ in keys]
        for layer, held in zip(layers, keys, strict=True):
            layer.keys, layer.values = held, held + 1
            layer.is_initialized, layer.dtype, layer.device = True, held.dtype, held.device
        cache = cache_utils.Cache(layers=layers)
        cache.count, cache.shared = 0, {}
        for block in self.blocks:
            x = block(x, cache)
        return x, [layer.keys for layer in layers], [layer.values for layer in layers]


def inputs(lengths=(3,) * DEPTH):
    return torch.ones(1, 1, 1, 8), [torch.ones(1, 1, length, 8) for length in lengths]


def own(block, x, cache):
    return x


def compared(block, x, cache):
    return x * 2 if block.layer_idx == FIVE else x


def ordered(block, x, cache):
    return x * 2 if block.layer_idx >= 6 else x


def one_of(block, x, cache):
    return x * 2 if block.layer_idx in (3, 5) else x


def counts_in_its_layer(block, x, cache):
    layer = cache.layers[block.layer_idx]
    layer.count = getattr(layer, "count", 0) + 1
    return x * layer.count


OWN_LAYER = {
    "own": own,
    "compared": compared,
    "ordered": ordered,
    "one of": one_of,
    "counts": counts_in_its_layer,
}


@pytest.mark.parametrize("step", ["own", "compared", *slow("ordered", "one of", "counts")])
def test_blocks_with_layers_of_their_own(step):
    check(Model(OWN_LAYER[step]).eval(), inputs())


def type_of(block, x, cache):
    return x * 2 if type(block.layer_idx) is int and block.layer_idx == FIVE else x


def same_object(block, x, cache):
    return x * 2 if block.layer_idx is FIVE else x


def writes_into_the_next(block, x, cache):
    layer = cache.layers[(block.layer_idx + 1) % DEPTH]
    layer.keys = layer.keys * 2
    return x


def counts_updates(block, x, cache):
    cache.count += 1
    return x * cache.count


def shares(block, x, cache):
    cache.shared[block.layer_idx] = x
    return x + sum(cache.shared.values())


def keeps_its_number(block, x, cache):
    block.note = block.layer_idx
    return x * block.note


def code_in_c(block, x, cache):
    return x + list.__add__([], cache.layers)[0].keys.mean()


def unwanted(block, x, cache):
    try:
        return x * 2 if cache.layers.index(cache.layers[block.layer_idx]) == FIVE else x
    except ValueError:
        return x


OTHER = {
    "layer 0": lambda block, x, cache: x + cache.layers[0].keys.mean(),
    "length of layer 0": lambda block, x, cache: x * cache.get_seq_length(0),
    "all layers": lambda block, x, cache: x * sum(layer.get_seq_length() for layer in cache.layers),
    "the layer before": lambda block, x, cache: x + cache.layers[block.layer_idx - 1].keys.mean(),
    "a slice": lambda block, x, cache: x * len(cache.layers[: block.layer_idx]),
    "product": lambda block, x, cache: x * block.layer_idx,
    "quotient": lambda block, x, cache: x / float(block.layer_idx + 1),
    "size": lambda block, x, cache: x + torch.ones(block.layer_idx + 1).sum(),
    "fill": lambda block, x, cache: x + torch.full((8,), block.layer_idx),
    "most": lambda block, x, cache: x * max(block.layer_idx, FIVE),
    "key": lambda block, x, cache: x * TABLE[block.layer_idx],
    "text": lambda block, x, cache: x * len(f"{block.layer_idx:>{block.layer_idx + 1}}"),
    "bits": lambda block, x, cache: x * (1 << block.layer_idx),
    "negative": lambda block, x, cache: x * -block.layer_idx,
    "type": type_of,
    "object": same_object,
    "next layer": writes_into_the_next,
    "updates": counts_updates,
    "shared": shares,
    "number kept": keeps_its_number,
    "code in C": code_in_c,
    "place of its layer": unwanted,
}
DEFAULT = ("layer 0", "length of layer 0", "product", "key", "type", "next layer", "updates")


@pytest.mark.parametrize("step", [*DEFAULT, *slow(*(name for name in OTHER if name not in DEFAULT))])
def test_what_differs_by_position_is_not_missed(step):
    check_outcome(Model(OTHER[step]).eval(), inputs())


class Static(cache_utils.StaticLayer):
    """Its tensors are written into at the places that its own tensor says."""

    def __init__(self):
        super().__init__(3)
        self.cumulative_length = None

    def update(self, keys, values):
        self.keys.index_copy_(2, self.places, keys)
        self.values.index_copy_(2, self.places, values)
        self.places.add_(1)
        return self.keys, self.values


def helper(model):
    """What all blocks hold has a number of that name, which is the position of the block that is recorded."""
    shared = Block(1, own)
    for block in model.blocks:
        block.held = (shared,)


def by_helper(block, x, cache):
    return x + cache.layers[block.held[0].layer_idx].keys.mean()


class Numbered(nn.Module):
    def __init__(self, at):
        super().__init__()
        self.layer_idx = at


def two_numbers(model):
    """Parts with the number of the block, and with one of their own; in one block both have the latter."""
    for at, block in enumerate(model.blocks):
        block.first = Numbered(DEPTH + at if at == FIVE else at)
        block.second = Numbered(DEPTH + at)


def by_first(block, x, cache):
    return x + cache.layers[block.first.layer_idx].keys.mean()


MODELS = {
    "two numbers": (lambda: Model(by_first, prepare=two_numbers), inputs((3,) * 2 * DEPTH)),
    "reversed": (lambda: Model(own, reversed(range(DEPTH))), inputs()),
    "lengths": (lambda: Model(own), inputs((3, 3, 3, 3, 4, 3, 3, 3))),
    "dtypes": (
        lambda: Model(own),
        (inputs()[0], [k.double() if at == 4 else k for at, k in enumerate(inputs()[1])]),
    ),
    "one cache in two places": (lambda: Model(own), (inputs()[0], [inputs()[1][0]] * DEPTH)),
    "helper": (lambda: Model(by_helper, prepare=helper), inputs()),
    "windows": (lambda: Model(own, make=lambda: cache_utils.DynamicSlidingWindowLayer(3)), inputs()),
}


@pytest.mark.parametrize(
    "model",
    ["lengths", "helper", "two numbers", *slow("reversed", "dtypes", "one cache in two places", "windows")],
)
def test_layers_that_differ_are_not_missed(model):
    make, args = MODELS[model]

    check_outcome(make().eval(), args)


@pytest.mark.parametrize("is_trained", [False, *slow(True)])
def test_a_static_cache_is_written_by_each_block(is_trained):
    class Writes(Model):
        def forward(self, x, keys, places):
            remaining = iter([place.clone() for place in places])

            def make():
                made = Static()
                made.places = next(remaining)
                return made

            self.make = make
            with torch.set_grad_enabled(is_trained):
                return super().forward(x, [held.clone() for held in keys])

    places = [torch.zeros(1, dtype=torch.long) for _ in range(DEPTH)]
    check(Writes(own).eval(), (*inputs(), places))


AUTO = torch.export.Dim.AUTO


@pytest.mark.parametrize("is_first", [False, *slow(True)])
def test_lengths_of_symbols_of_their_own_are_not_missed(is_first):
    """Each layer has a guard of its own, or one of them has."""

    def asks(block, x, cache):
        is_asked = not is_first or block.layer_idx == FIVE
        return x * 2 if is_asked and cache.layers[block.layer_idx].keys.shape[2] > 6 else x

    check_outcome(Model(asks).eval(), inputs(), dynamic=({}, [{2: AUTO}] * DEPTH))
