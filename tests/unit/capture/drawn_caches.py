"""Models of equal blocks with a cache, except for one thing that the code of a block may observe of it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from transformers import cache_utils

__all__ = ["CHANGES", "KINDS", "STEPS", "CachePlan", "built", "example"]

WIDTH, LENGTH = 8, 4
CROSSED = 2


@dataclass(frozen=True)
class CachePlan:
    """A model.

    Args:
        count: Of blocks.
        kind: Of the layers of the cache.
        steps: What each block does, by name.
        change: What is different before some blocks are called.
        places: Where it is different.
    """

    count: int
    kind: str
    steps: tuple[str, ...]
    change: str
    places: frozenset[int]


class Block(nn.Module):
    def __init__(self, at: int, steps: tuple[str, ...]) -> None:
        super().__init__()
        self.layer_idx = at
        self.steps = steps
        self.note: Any = None
        self.up = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: torch.Tensor, cache: Any) -> torch.Tensor:
        for step in self.steps:
            x = STEPS[step](self, x, cache)
        return x


class Static(cache_utils.StaticLayer):
    """It holds everything from the start, and writes at the place that its own tensor says."""

    def __init__(self) -> None:
        super().__init__(LENGTH)
        self.cumulative_length = None
        self.place = torch.zeros(1, dtype=torch.long)  # Of the trace: each layer has its own.

    def update(self, keys: torch.Tensor, values: torch.Tensor, *_: Any) -> tuple[torch.Tensor, torch.Tensor]:
        self.keys.index_copy_(2, self.place, keys)
        self.values.index_copy_(2, self.place, values)
        self.place.add_(1)
        return self.keys, self.values

    def get_seq_length(self) -> int:
        return LENGTH


KINDS: dict[str, Callable[[], Any]] = {
    "grows": cache_utils.DynamicLayer,
    "window": lambda: cache_utils.DynamicSlidingWindowLayer(3),
    "static": Static,
}


class Model(nn.Module):
    """Calls its blocks with an encoder-decoder cache, and changes it before some of them."""

    def __init__(self, plan: CachePlan) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(Block(at, plan.steps) for at in range(plan.count))
        self.plan = plan

    def forward(self, x: torch.Tensor, keys: list[torch.Tensor]) -> Any:
        own, crossed = (self._filled(keys) for _ in range(2))
        cache = cache_utils.EncoderDecoderCache(own, crossed)
        cache.is_updated = {at: at % 4 != CROSSED for at in range(len(keys))}
        cache.count = 0
        for at, block in enumerate(self.blocks):
            if at in self.plan.places:
                CHANGES[self.plan.change](cache, block, at)
            x = block(x, cache)
        held = [getattr(layer, name) for layer in own.layers + crossed.layers for name in ("keys", "values")]
        return x * (1 + sum(cache.is_updated.values())), held, [block.note for block in self.blocks]

    def _filled(self, keys: list[torch.Tensor]) -> Any:
        layers = [KINDS[self.plan.kind]() for _ in keys]
        for layer, held in zip(layers, keys, strict=True):
            layer.keys, layer.values = held.clone(), held + 1
            layer.is_initialized, layer.dtype, layer.device = True, held.dtype, held.device
            if hasattr(layer, "_sliding_window_tensor"):  # A literal: no block with one is reused.
                layer._sliding_window_tensor = held.new_zeros(())
        return cache_utils.Cache(layers=layers)


def _own(block: Block, x: torch.Tensor, cache: Any) -> torch.Tensor:
    made = block.up(x)
    keys, values = cache.self_attention_cache.update(made, made * 2, block.layer_idx)
    return x + 0.1 * torch.tanh(keys * values).sum(2, keepdim=True)


def _crossed(block: Block, x: torch.Tensor, cache: Any) -> torch.Tensor:
    if cache.is_updated.get(block.layer_idx):
        return x + cache.cross_attention_cache.layers[block.layer_idx].keys.mean(2, keepdim=True)
    cache.is_updated[block.layer_idx] = True
    return x + cache.cross_attention_cache.update(x, x, block.layer_idx)[0].mean(2, keepdim=True)


def _keeps(block: Block, x: torch.Tensor, cache: Any) -> torch.Tensor:
    block.note = block.layer_idx
    return x


def _in_place(block: Block, x: torch.Tensor, cache: Any) -> torch.Tensor:
    cache.self_attention_cache.layers[block.layer_idx].values.mul_(0.5)
    return x


def _counts(block: Block, x: torch.Tensor, cache: Any) -> torch.Tensor:
    cache.count += 1
    return x * (1 + 0.1 * cache.count)


def _crops(block: Block, x: torch.Tensor, cache: Any) -> torch.Tensor:
    layer = cache.self_attention_cache.layers[block.layer_idx]
    layer.keys = layer.keys[:, :, 1:]
    return x + layer.keys.sum(2, keepdim=True)


def _reorders(block: Block, x: torch.Tensor, cache: Any) -> torch.Tensor:
    cache.self_attention_cache.layers[block.layer_idx].reorder_cache(x.new_zeros(1).long())
    return x


def _crops_all(block: Block, x: torch.Tensor, cache: Any) -> torch.Tensor:
    if block.layer_idx == 4:
        for layer in cache.self_attention_cache.layers:
            layer.keys = layer.keys[:, :, 1:]
    return x


def _reorders_all(block: Block, x: torch.Tensor, cache: Any) -> torch.Tensor:
    if block.layer_idx == 4:
        cache.reorder_cache(torch.zeros(1, dtype=torch.long))
    return x


STEPS: dict[str, Callable[[Any, torch.Tensor, Any], torch.Tensor]] = {
    "own": _own,
    "crossed": _crossed,
    "keeps": _keeps,
    "in place": _in_place,
    "counts": _counts,
    "crops": _crops,
    "reorders": _reorders,
    "crops all": _crops_all,
    "reorders all": _reorders_all,
    "length": lambda b, x, c: x * (1 + 0.1 * c.get_seq_length(b.layer_idx)),
    "length of the first": lambda b, x, c: x * (1 + 0.1 * c.get_seq_length(0)),
    "all lengths": lambda b, x, c: x + 0.1 * sum(e.keys.shape[2] for e in c.self_attention_cache.layers),
    "the one before": lambda b, x, c: x + c.self_attention_cache.layers[b.layer_idx - 1].keys.mean(),
    "one layer": lambda b, x, c: x + c.cross_attention_cache.layers[3].keys.mean(),
    "compares": lambda b, x, c: x * 2 if b.layer_idx == 4 else x,
    "orders": lambda b, x, c: x * 2 if b.layer_idx >= 5 else x,
    "computes": lambda b, x, c: x * (1 + 0.1 * b.layer_idx),
    "type": lambda b, x, c: x * (2 if type(b.layer_idx) is int else 3),
    "all flags": lambda b, x, c: x * (1 + sum(c.is_updated.values())),
    "one flag": lambda b, x, c: x * (2 if c.is_updated[0] else 3),
    "kind": lambda b, x, c: x * (2 if c.self_attention_cache.layers[b.layer_idx].is_sliding else 3),
}


def _longer(cache: Any, block: Block, at: int) -> None:
    layer = cache.self_attention_cache.layers[at]
    layer.keys = torch.cat([layer.keys, layer.keys[:, :, :1]], 2)
    layer.values = torch.cat([layer.values, layer.values[:, :, :1]], 2)


def _swapped(cache: Any, block: Block, at: int) -> None:
    layers = cache.self_attention_cache.layers
    layers[at], layers[at - 1] = layers[at - 1], layers[at]


def _shared(cache: Any, block: Block, at: int) -> None:
    cache.self_attention_cache.layers[at] = cache.self_attention_cache.layers[0]


def _one_tensor(cache: Any, block: Block, at: int) -> None:
    layer = cache.self_attention_cache.layers[at]
    layer.values = layer.keys


def _another_kind(cache: Any, block: Block, at: int) -> None:
    cache.self_attention_cache.layers[at].is_sliding = True


def _flag_of_the_first(cache: Any, block: Block, at: int) -> None:
    cache.is_updated[0] = not cache.is_updated[0]


def _flag(cache: Any, block: Block, at: int) -> None:
    cache.is_updated[at] = not cache.is_updated[at]


def _double(cache: Any, block: Block, at: int) -> None:
    cache.self_attention_cache.layers[at].keys = cache.self_attention_cache.layers[at].keys.double()


def _number(cache: Any, block: Block, at: int) -> None:
    block.layer_idx = 0


def _attribute(cache: Any, block: Block, at: int) -> None:
    cache.self_attention_cache.layers[at].is_compileable = not cache.self_attention_cache.is_compileable


def _one_cache(cache: Any, block: Block, at: int) -> None:
    cache.cross_attention_cache = cache.self_attention_cache


CHANGES: dict[str, Callable[[Any, Block, int], None]] = {
    "nothing": lambda cache, block, at: None,
    "longer": _longer,
    "swapped": _swapped,
    "shared": _shared,
    "one tensor": _one_tensor,
    "another kind": _another_kind,
    "flag of the first": _flag_of_the_first,
    "flag": _flag,
    "double": _double,
    "number": _number,
    "attribute": _attribute,
    "one cache": _one_cache,
}


def example(plan: CachePlan) -> tuple[torch.Tensor, list[torch.Tensor]]:
    """Inputs: a token, and keys for each block."""
    keys = [torch.linspace(-1, 1, LENGTH * WIDTH).reshape(1, 1, LENGTH, WIDTH) for _ in range(plan.count)]
    return torch.full((1, 1, 1, WIDTH), 0.5), keys


def built(plan: CachePlan) -> Model:
    """The model of a plan, in the state of a fresh process."""
    torch.manual_seed(0)
    return Model(plan).eval()
