"""Layers of a cache that hold nothing yet, without a constant for each."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

from fakexport._torch.patching import Patches


@contextmanager
def empty_layers() -> Iterator[None]:
    """Enter a context in which a layer of a cache that grows begins with zeros of the size `[0]`.

    transformers begins it with `torch.tensor([])`, a literal. As a constant of the program, that is another
    one for the keys and for the values of every layer, so that no layer has the nodes of another.

    Source: transformers 5.17 to 5.23, `cache_utils.py:DynamicLayer.lazy_initialization`.
    """
    from transformers.cache_utils import DynamicLayer

    parameters = inspect.signature(DynamicLayer.lazy_initialization).parameters
    if list(parameters) != ["self", "key_states", "value_states"]:
        yield
        return
    with Patches({(DynamicLayer, "lazy_initialization"): _begin}):
        yield


def _begin(layer: Any, key_states: torch.Tensor, value_states: torch.Tensor) -> None:
    layer.dtype, layer.device = key_states.dtype, key_states.device
    layer.keys, layer.values = key_states.new_zeros(0), key_states.new_zeros(0)
    layer.is_initialized = True
