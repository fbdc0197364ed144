"""Example inputs of a step of generation: one token, and the cache that the tokens before it left."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import nn

from fakexport.sources.source import ExampleInputs
from fakexport.sources.source_error import SourceError
from fakexport.sources.transformers_inputs import derive_inputs

_WINDOWS = ("sliding_window", "attention_chunk_size")
_TOKENS = 64
_TEXT = {"input_ids", "attention_mask"}


def decode_inputs(
    module: nn.Module, device: str, dtype: torch.dtype | None, *, batch: int, context: int
) -> ExampleInputs:
    """Return the inputs of the call that reads the last token of a context.

    The model itself makes the cache: it reads the tokens before the last one. So the cache is of the kind
    that the model expects, and where a layer keeps a window or a state, it has that size.

    Args:
        module, device, dtype: as for `derive_inputs`. The module's tensors are fakes.
        batch: Sequences at a time.
        context: Tokens that the model attends to, the new one included. The example has fewer where that
            makes no difference: it is longer than every window, so that a cache that keeps one shows it.
    Raises:
        SourceError: the model reads something else than text, or returns no cache.
    """
    context = min(context, _example_context(module))
    before = derive_inputs(module, device, dtype, batch=batch, sequence=context - 1)
    name = type(module).__name__
    if not before.kwargs.keys() <= _TEXT or "input_ids" not in before.kwargs:
        others = ", ".join(sorted(before.kwargs.keys() - _TEXT)) or "no input_ids"
        raise SourceError(
            f"decode inputs of {name} cannot be derived ({others}): write a factory that returns them"
        )
    with torch.no_grad():
        returned = module(**before.kwargs, use_cache=True)
    cache = _cache_of(returned)
    if cache is None:
        raise SourceError(f"{name} does not return a cache, so a decode step cannot be planned")
    parameter, state = cache
    token = before.kwargs["input_ids"][:, :1].clone()
    kwargs = {"input_ids": token}
    if "attention_mask" in before.kwargs:
        kwargs["attention_mask"] = torch.ones(batch, context, dtype=torch.long, device=device)
    return replace(before, kwargs={**kwargs, parameter: state, "use_cache": True})


def _example_context(module: nn.Module) -> int:
    config: Any = module.config
    config = config.get_text_config(decoder=True)
    windows = [getattr(config, name, None) for name in _WINDOWS]
    return _TOKENS + max((window for window in windows if isinstance(window, int)), default=0)


def _cache_of(returned: Any) -> tuple[str, Any] | None:
    """Return the name under which a model takes its cache, and the cache."""
    for name in ("past_key_values", "cache_params"):
        state = getattr(returned, name, None)
        if state is not None:
            return name, state
    return None
