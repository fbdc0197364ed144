"""Static caches, as inputs or as buffers that the program writes in each call.

The position in the cache is an input, and the mask hides positions that the current prompt has not written.
Therefore, the buffers need not be reset before the next prompt.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import nn

from fakexport._torch.emulation.fake_tensors import mode_of
from fakexport.emulation.history import recording
from fakexport.models.sources.source_error import SourceError

START = "cache_position"
"""Name of the input with the position of the first token. transformers' exportable modules use the same
name.
"""

_KEYS, _VALUES = "key_cache_{}", "value_cache_{}"


def static_cache(module: nn.Module, capacity: int) -> Any:
    """Return an empty static cache of transformers, or raise a `SourceError` if a layer has none.

    Layers with a sliding window keep every token, and the attention mask applies the window. A cache that
    only keeps the window would count its tokens in Python.
    """
    from transformers.cache_utils import StaticCache, StaticLayer, StaticSlidingWindowLayer

    # A program supports masks that are shorter than the cache, but not masks of the same length, so the cache
    # has one more position.
    places = capacity + 1
    try:
        cache = StaticCache(config=module.config, max_cache_len=places)
    except KeyError as error:
        raise SourceError(
            f"{type(module).__name__} has layers of type {error}, for which transformers has no "
            "static cache: remove --max-cache-len"
        ) from error
    cache.layers = [
        StaticLayer(places) if type(layer) is StaticSlidingWindowLayer else layer for layer in cache.layers
    ]
    return cache


def keys_and_values(module: nn.Module, capacity: int) -> Any:
    """Return an empty static cache, or raise a `SourceError` if a layer keeps more than keys and values."""
    from transformers import cache_utils

    # transformers 5.17 has no `DummyLayer`.
    kinds = {cache_utils.StaticLayer, getattr(cache_utils, "DummyLayer", None)}
    cache = static_cache(module, capacity)
    if others := [layer for layer in cache.layers if type(layer) not in kinds]:
        raise _not_kept(module, f"the cache has a {type(others[0]).__name__}, not only keys and values")
    return cache


def empty_buffers(module: nn.Module, cache: Any) -> dict[str, torch.Tensor]:
    """Return zeros, by buffer name, for each cache tensor that the model has written."""
    used = {
        name.format(index): tensor
        for index, layer in enumerate(cache.layers)
        for name, tensor in ((_KEYS, layer.keys), (_VALUES, layer.values))
        if tensor is not None
    }
    if not used:
        raise _not_kept(module, "the model writes no keys or values")
    mode = mode_of(module.parameters())
    assert mode is not None
    with mode, recording(mode):
        return {
            name: torch.zeros(tensor.shape, dtype=tensor.dtype, device=tensor.device)
            for name, tensor in used.items()
        }


def kept_cache(
    module: nn.Module, capacity: int, buffers: Mapping[str, torch.Tensor], start: torch.Tensor
) -> Any:
    """Return a cache whose tensors are buffers of a module; tokens begin at `start`, int64 `[1]`.

    During the trace, the buffers of `module` are not the same tensors as `buffers`.
    """
    cache = keys_and_values(module, capacity)
    for index, layer in enumerate(cache.layers):
        if _KEYS.format(index) in buffers:
            layer.keys = getattr(module, _KEYS.format(index))
            layer.values = getattr(module, _VALUES.format(index))
            layer.dtype, layer.device = layer.keys.dtype, layer.keys.device
            layer.batch_size, layer.num_heads = layer.keys.shape[:2]
            # Cloned, because the layer adds to it in place, and the input must not change.
            layer.cumulative_length = start[0].to(layer.device).clone()
            layer.is_initialized = True
    return cache


def _not_kept(module: nn.Module, why: str) -> SourceError:
    return SourceError(
        f"a program cannot keep the cache of {type(module).__name__} in buffers because {why}: remove "
        "--cache-form buffers"
    )
