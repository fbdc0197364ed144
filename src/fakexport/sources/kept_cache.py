"""A static cache, and one that the program itself keeps, as buffers that each call writes into.

The places in the cache come from an input, so nothing has to be reset before another prompt: what a call has
not written yet is behind its mask.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import nn

from fakexport._torch.fake_tensors import mode_of
from fakexport.history import recording
from fakexport.sources.source_error import SourceError

START = "cache_position"
"The input with the place of the first token, as in the exportable modules of transformers."

_KEYS, _VALUES = "key_cache_{}", "value_cache_{}"


def static_cache(module: nn.Module, capacity: int) -> Any:
    """Return an empty static cache of transformers.

    A layer with a window keeps every token, and its mask applies the window: one that is cut to the window
    counts its tokens in Python.

    Raises:
        SourceError: transformers has no static cache for a layer of the model.
    """
    from transformers.cache_utils import StaticCache, StaticLayer, StaticSlidingWindowLayer

    # Masks of all lengths but that of the cache are one program, so there is one place more.
    places = capacity + 1
    try:
        cache = StaticCache(config=module.config, max_cache_len=places)
    except KeyError as error:
        raise SourceError(
            f"{type(module).__name__} has layers of {error}, and transformers has no static cache of them: "
            "leave out --cache-length"
        ) from error
    cache.layers = [
        StaticLayer(places) if type(layer) is StaticSlidingWindowLayer else layer for layer in cache.layers
    ]
    return cache


def keys_and_values(module: nn.Module, capacity: int) -> Any:
    """Return an empty static cache that holds nothing else.

    Raises:
        SourceError: a layer keeps something else.
    """
    from transformers.cache_utils import DummyLayer, StaticLayer

    cache = static_cache(module, capacity)
    if others := [layer for layer in cache.layers if type(layer) not in (StaticLayer, DummyLayer)]:
        raise _not_kept(module, type(others[0]).__name__)
    return cache


def empty_buffers(module: nn.Module, cache: Any) -> dict[str, torch.Tensor]:
    """Return zeros by the name of the buffer, for each tensor of a cache that the model has written into.

    Raises:
        SourceError: the model left it empty.
    """
    used = {
        name.format(index): tensor
        for index, layer in enumerate(cache.layers)
        for name, tensor in ((_KEYS, layer.keys), (_VALUES, layer.values))
        if tensor is not None
    }
    if not used:
        raise _not_kept(module, "none that it fills")
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
    """Return the cache whose tensors are buffers of a module.

    Args:
        module: It has the buffers as attributes; while it is traced, these are other tensors.
        start: The place of the first token, int64 `[1]`.
    """
    cache = keys_and_values(module, capacity)
    for index, layer in enumerate(cache.layers):
        if _KEYS.format(index) in buffers:
            layer.keys = getattr(module, _KEYS.format(index))
            layer.values = getattr(module, _VALUES.format(index))
            layer.dtype, layer.device = layer.keys.dtype, layer.keys.device
            layer.batch_size, layer.num_heads = layer.keys.shape[:2]
            # The layer adds to it: the input stays as it is.
            layer.cumulative_length = start[0].to(layer.device).clone()
            layer.is_initialized = True
    return cache


def _not_kept(module: nn.Module, what: str) -> SourceError:
    return SourceError(
        f"the cache of {type(module).__name__} is not keys and values alone ({what}), so a program cannot "
        "keep it in buffers: leave out --cache-form buffers"
    )
