"""Blocks with an encoder-decoder cache: each uses the flag of its own, and nothing else is missed."""

from __future__ import annotations

import json

import pytest
import torch
from torch import nn

from fakexport.capture.block_reuse import noted_parts
from tests.unit.capture.reused_blocks import DEPTH, StepBlock, check, check_outcome, slow

cache_utils = pytest.importorskip("transformers.cache_utils")

FIVE, FLIPPED = 5, 1
ALL_SET = dict.fromkeys(range(DEPTH), True)


class Block(StepBlock):
    """Takes what an encoder computed from the cache, or computes it, and goes on."""

    def forward(self, x, cache):
        crossed = cache.cross_attention_cache
        if cache.is_updated.get(self.layer_idx):
            keys = crossed.layers[self.layer_idx].keys
        else:
            keys, _ = crossed.update(self.up(x), self.up(x) * 2, self.layer_idx)
            cache.is_updated[self.layer_idx] = True
        return self.step(self, x + keys.sum(2, keepdim=True), cache)


class Model(nn.Module):
    """Blocks, and a cache with flags; one of these is another one for a block in the middle."""

    def __init__(self, step, flags=ALL_SET):
        super().__init__()
        self.blocks = nn.ModuleList(Block(at, step) for at in range(DEPTH))
        self.flags = flags

    def forward(self, x, keys):
        cache = cache_utils.EncoderDecoderCache(filled(keys), filled(keys))
        flags = cache.is_updated = dict(self.flags)
        for at, block in enumerate(self.blocks):
            flags[FLIPPED] ^= at == FIVE
            x = block(x, cache)
            flags[FLIPPED] ^= at == FIVE
        return x * (1 + sum(cache.is_updated.values())), [
            layer.keys for layer in cache.cross_attention_cache.layers
        ]


def filled(keys):
    cache = cache_utils.Cache(layers=[cache_utils.DynamicLayer() for _ in keys])
    for layer, held in zip(cache.layers, keys, strict=True):
        layer.keys, layer.values = held, held + 1
        layer.is_initialized, layer.dtype, layer.device = True, held.dtype, held.device
    return cache


INPUTS = torch.ones(1, 1, 1, 8), [torch.ones(1, 1, 3, 8) for _ in range(DEPTH)]


def own(block, x, cache):
    return x


def sets_its_flag(block, x, cache):
    cache.is_updated[block.layer_idx] = not cache.is_updated[block.layer_idx]
    return x * (2 if block.layer_idx in cache.is_updated else 3) * len(cache.is_updated)


@pytest.mark.parametrize("step", [own, *slow(sets_its_flag)])
@pytest.mark.parametrize("is_set", [True, *slow(False)])
def test_blocks_with_flags_of_their_own_are_reused(step, is_set, reports):
    check(Model(step, dict.fromkeys(range(DEPTH), is_set)).eval(), INPUTS)

    assert [blocks.report()["Block"][1] > 0 for blocks in reports] == [True], reports[-1].report()


def sets_the_next(block, x, cache):
    if block.layer_idx + 1 < DEPTH:
        cache.is_updated[block.layer_idx + 1] = block.layer_idx % 2 == 0
    return x


def sets_one_more(block, x, cache):
    cache.is_updated[DEPTH + block.layer_idx] = True
    return x * len(cache.is_updated)


def counts(block, x, cache):
    cache.is_updated[block.layer_idx] = len(cache.self_attention_cache) + block.layer_idx
    return x


def removes(block, x, cache):
    return x * (2 if cache.is_updated.pop(block.layer_idx) else 3)


def replaces(block, x, cache):
    cache.is_updated = {**cache.is_updated, block.layer_idx: False}
    return x * (1 + sum(cache.is_updated.values()))


def code_in_c(block, x, cache):
    try:
        return x * (1 + sum(dict.values(cache.is_updated)))
    except TypeError as error:
        raise RuntimeError("a dict cannot be read") from error


OTHER = {
    "flag of the next": sets_the_next,
    "one more": sets_one_more,
    "a number": counts,
    "removed": removes,
    "replaced": replaces,
    "code in C": code_in_c,
    "sum": lambda block, x, cache: x * (1 + sum(cache.is_updated.values())),
    "one flag for all": lambda block, x, cache: x * (2 if cache.is_updated[FLIPPED] else 3),
    "flag that is not there": lambda block, x, cache: (
        x * (2 if cache.is_updated.get(block.layer_idx + 1) else 3)
    ),
    "copy": lambda block, x, cache: x * (2 if {**cache.is_updated}[FLIPPED] else 3),
    "text": lambda block, x, cache: x * len(json.dumps(cache.is_updated)),
    "union": lambda block, x, cache: x * (1 + sum(({} | cache.is_updated).values())),
    "order": lambda block, x, cache: x * (1 + [*cache.is_updated].index(block.layer_idx)),
    "type": lambda block, x, cache: x * (2 if type(cache.is_updated) is dict else 3),
    "reversed": lambda block, x, cache: x * (1 + next(reversed(cache.is_updated))),
}
MIXED = {at: at not in (3, 6) for at in range(DEPTH)}


@pytest.mark.parametrize("step", ["one flag for all", *slow(*sorted(OTHER.keys() - {"one flag for all"}))])
def test_what_differs_by_flag_is_not_missed(step, reports):
    check_outcome(Model(OTHER[step]).eval(), INPUTS)

    assert reports[0].replayed == 0, reports[0].report()


@pytest.mark.slow
@pytest.mark.parametrize(
    "flags",
    [
        MIXED,
        dict.fromkeys(range(DEPTH - 2), True),
        {at: 1 if at == FIVE else True for at in range(DEPTH)},
        {True if at == 1 else at: True for at in range(DEPTH)},
    ],
)
def test_flags_that_differ_are_not_missed(flags):
    check_outcome(Model(own, flags).eval(), INPUTS)


@pytest.mark.slow
def test_flags_of_two_caches_that_are_one_dict_are_not_missed():
    class Shares(Model):
        def forward(self, x, keys):
            first, second = (cache_utils.EncoderDecoderCache(filled(keys), filled(keys)) for _ in range(2))
            second.is_updated = first.is_updated
            first.other = second
            for block in self.blocks:
                x = block(x, first)
            return x

    def asks(block, x, cache):
        cache.other.is_updated[block.layer_idx] = False
        return x * (2 if cache.is_updated[block.layer_idx] else 3)

    check_outcome(Shares(asks).eval(), INPUTS)


def test_every_method_of_a_dict_is_noted():
    stand_in = set(vars(noted_parts.NotedFlags))

    assert {name for name in vars(dict) if callable(getattr(dict, name))} <= stand_in | {
        "__new__",
        "__getattribute__",
        "__class_getitem__",
    }
