"""Values for example inputs that have none, so that a difference shows in the outputs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import nn

_FIRST_TOKEN = 3  # After those that mean padding, start and end in most vocabularies.


def drawn_values(inputs: Mapping[str, Any], module: nn.Module, *, seed: int) -> dict[str, Any]:
    """Return the inputs with random numbers in place of zeros.

    Floating-point numbers are drawn from the normal distribution, token ids (names that end in `input_ids`)
    from the vocabulary. Nonzero numbers mean something (placeholder tokens, masks) and stay, as do masks and
    other whole numbers.

    Args:
        inputs: Tensors by name, on the CPU; other values stay.
        module: The module that takes them.
        seed: Seed of the random numbers.
    """
    generator = torch.Generator().manual_seed(seed)
    drawn = {}
    for name, value in inputs.items():
        if isinstance(value, torch.Tensor) and not name.endswith("mask"):
            if value.dtype.is_floating_point:
                numbers = torch.randn(value.shape, generator=generator).to(value.dtype)
                value = torch.where(value == 0, numbers, value)
            elif name.endswith("input_ids") and (tokens := _tokens(module)) > _FIRST_TOKEN:
                ids = torch.randint(_FIRST_TOKEN, tokens, value.shape, generator=generator)
                value = torch.where(value == 0, ids.to(value.dtype), value)
        drawn[name] = value
    return drawn


def _tokens(module: nn.Module) -> int:
    """Return the vocabulary size: of the model's input embedding, else the smallest embedding."""
    own = getattr(module, "get_input_embeddings", None)
    try:
        embedding = own() if callable(own) else None
    except NotImplementedError:  # transformers declares it for models that have none
        embedding = None
    if isinstance(embedding, nn.Embedding):
        return embedding.num_embeddings
    found = [part.num_embeddings for part in module.modules() if isinstance(part, nn.Embedding)]
    return min(found, default=0)
