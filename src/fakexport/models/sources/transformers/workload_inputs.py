"""Derive the inputs of a transformers model for a forward pass, a decode step or a training step."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from functools import partial
from types import MappingProxyType
from typing import Any, cast

import torch
from torch import nn

from fakexport.error import type_and_line
from fakexport.models.sources.media_inputs.processor_inputs import Processor
from fakexport.models.sources.source import ExampleInputs
from fakexport.models.sources.source_error import SourceError
from fakexport.models.sources.transformers.exporter_patches import kernels_of_hub
from fakexport.models.sources.transformers.transformers_inputs import derive_inputs
from fakexport.models.sources.workload import Workload

_OF_TOKENS = (
    "ForCausalLM",
    "LMHeadModel",
    "ForMaskedLM",
    "ForConditionalGeneration",
    "ForTokenClassification",
)
_OF_EXAMPLES = ("ForSequenceClassification", "ForImageClassification", "ForVideoClassification")
_TOKENS = ("decoder_input_ids", "input_ids")


def labelled_inputs(
    module: nn.Module,
    device: str,
    dtype: torch.dtype | None,
    *,
    batch: int = 2,
    sequence: int = 16,
    processor: Processor | None = None,
) -> ExampleInputs:
    """Return inputs of one forward pass. They include labels if the shape of the model's labels is known.

    The shape is known for models with one label per token or per example. The class name shows which of the
    two applies.

    Raises:
        SourceError: as for `derive_inputs`.
    """
    found = derive_inputs(module, device, dtype, batch=batch, sequence=sequence, processor=processor)
    if "labels" not in inspect.signature(module.forward).parameters:
        return found
    if (shape := _shape(type(module).__name__, found.kwargs, batch)) is None:
        return found
    labels = torch.zeros(shape, device=device, dtype=torch.long)
    return replace(found, kwargs={**found.kwargs, "labels": labels})


def _shape(name: str, inputs: Mapping[str, Any], batch: int) -> tuple[int, ...] | None:
    tokens = next((inputs[own] for own in _TOKENS if own in inputs), None)
    if name.endswith(_OF_TOKENS) and tokens is not None:
        return tuple(tokens.shape)
    return (batch,) if name.endswith(_OF_EXAMPLES) else None


_WINDOWS = ("sliding_window", "attention_chunk_size")
_CACHED_TOKENS = 64
_TEXT = {"input_ids", "attention_mask"}


def decode_inputs(
    module: nn.Module,
    device: str,
    dtype: torch.dtype | None,
    *,
    batch: int,
    context: int,
    processor: Processor | None = None,
) -> ExampleInputs:
    """Return the inputs of the call that reads the last token of a context.

    The model itself creates the cache by reading the tokens before the last one, all of them text. The cache
    therefore has the class that the model expects, and each layer has the size of its window or state.

    Args:
        module, device, dtype: as for `derive_inputs`. The module's tensors are fake.
        batch: Number of sequences.
        context: Number of tokens that the model attends to, including the new one. The example inputs have
            at most 64 tokens more than the largest window: enough to recognize a cache with a window.
    Raises:
        SourceError: the model does not run on text alone, or returns no cache.
    """
    context = min(context, _example_context(module))
    before = derive_inputs(module, device, dtype, batch=batch, sequence=context - 1, processor=processor)
    name, config = type(module).__name__, cast("Any", module.config)
    read = {key: value for key, value in before.kwargs.items() if key in _TEXT}
    left_out = (before.kwargs.keys() - _TEXT) | before.omitted.keys()
    if "input_ids" not in read or config.is_encoder_decoder:
        raise SourceError(f"{name} does not read a prompt of text alone, so a decode step cannot be planned")
    # Without the exporter's patches, which change the layers of a cache with a window.
    with torch.no_grad(), kernels_of_hub(module):
        try:
            returned = module(**read, use_cache=True)
        except Exception as error:
            if not left_out:
                raise
            others = ", ".join(sorted(left_out))
            raise SourceError(f"{name} does not run without {others}: {type_and_line(error)}") from error
    if (cache := _cache_of(returned)) is None:
        raise SourceError(f"{name} does not return a cache, so a decode step cannot be planned")
    parameter, state = cache
    check_text_cache(module, state, left_out)
    kwargs = {"input_ids": read["input_ids"][:, :1].clone()}
    if "attention_mask" in read:
        kwargs["attention_mask"] = torch.ones(batch, context, dtype=torch.long, device=device)
    return replace(before, kwargs={**kwargs, parameter: state, "use_cache": True})


def check_text_cache(module: nn.Module, cache: Any, left_out: Collection[str]) -> None:
    """Reject the cache of a prompt of text alone if other inputs fill some of its layers.

    An example is cross-attention to images, as in Llama 3.2 Vision.

    Args:
        left_out: The inputs of the model that the prompt does not have.
    Raises:
        SourceError: a layer is empty, and there are such inputs.
    """
    layers = getattr(cache, "layers", ())
    if left_out and not all(getattr(layer, "is_initialized", True) for layer in layers):
        raise SourceError(
            f"{type(module).__name__} caches less without {', '.join(sorted(left_out))}, so a decode step "
            "after a prompt of text alone would lack keys and values"
        )


def _example_context(module: nn.Module) -> int:
    config: Any = module.config
    config = config.get_text_config(decoder=True)
    windows = [getattr(config, name, None) for name in _WINDOWS]
    return _CACHED_TOKENS + max((window for window in windows if isinstance(window, int)), default=0)


def _cache_of(returned: Any) -> tuple[str, Any] | None:
    """Return the name of the model's cache argument and the cache, or None if there is no cache."""
    for name in ("past_key_values", "cache_params"):
        state = getattr(returned, name, None)
        if state is not None:
            return name, state
    return None


_INPUTS: Mapping[str, Callable[..., ExampleInputs]] = MappingProxyType(
    {
        "forward": derive_inputs,
        "prefill": derive_inputs,
        "decode": decode_inputs,
        "train": labelled_inputs,
    }
)


def inputs_for(workload: Workload, processor: Processor | None) -> Callable[..., ExampleInputs]:
    """Return the function that derives the inputs of a workload, with its sizes."""
    length = "context" if workload.name == "decode" else "sequence"
    sizes = {"batch": workload.batch, length: workload.context}
    return partial(_INPUTS[workload.name], **sizes, processor=processor)
