"""Derive the inputs of a decode step: the model reads a prompt and creates the cache itself."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, cast

import torch
from torch import nn
from torch.overrides import TorchFunctionMode

from fakexport._torch.pytree import tree_leaves
from fakexport._torch.tracing.input_shapes import shared_sizes
from fakexport.error import FakexportError, type_and_line
from fakexport.models.sources.media_inputs.processor_inputs import Processor
from fakexport.models.sources.source import ExampleInputs
from fakexport.models.sources.source_error import SourceError
from fakexport.models.sources.transformers.exporter_patches import kernels_of_hub
from fakexport.models.sources.transformers.transformers_inputs import derive_inputs

_TEXT = {"input_ids", "attention_mask"}
_CACHES = ("past_key_values", "cache_params")
_WINDOWS = ("sliding_window", "attention_chunk_size")
_SHORT_TOKENS = 64
_MORE_TOKENS = 128
# If a long prompt takes more than twice as many calls as a short one, the model loops over its tokens.
_LOOPED = 2


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
    therefore has the class that the model expects, and each layer has its size for this context.

    The sizes have labels, from a second prompt of a different length. A size that is the same for both
    prompts is constant, and sizes that are the lengths of the prompts share a label.

    A model that loops over the tokens in Python takes too long for a long context. Its example has a short
    one, and every size of its cache is constant or the number of tokens.

    Args:
        context: Number of tokens that the model attends to, including the new one.
    Raises:
        SourceError: the model does not run on text alone, or returns no cache; or it loops over the tokens,
            and its cache has sizes that are unknown for long prompts.
    """
    from transformers.exporters.exporter_dynamo import register_cache_pytrees_for_model

    register_cache_pytrees_for_model(cast("Any", module))
    derived = partial(derive_inputs, module, device, dtype, batch=batch, processor=processor)
    short = min(context, _short_context(module))
    with _CallLimit() as calls:
        read = _read(module, derived(sequence=short - 1))
    other, is_looped = None, False
    if context > short:
        try:
            with _CallLimit(_LOOPED * calls.count):
                read, other = _read(module, derived(sequence=context - 1)), read
        except _TooManyCallsError:
            context, is_looped = short, True
    sizes = dict(_labels(read, other or _read(module, derived(sequence=short - 1 + _MORE_TOKENS)), batch))
    unknown = next((label for labels in sizes.values() for label in labels if label not in _KNOWN), None)
    if is_looped and unknown:
        raise SourceError(
            f"{type(module).__name__} loops over the tokens of a prompt, so only short prompts were run, and "
            f"the size of its cache for a long prompt is unknown: {unknown}"
        )
    kwargs = {"input_ids": read.prompt.kwargs["input_ids"][:, :1].clone()}
    if "attention_mask" in read.prompt.kwargs:
        kwargs["attention_mask"] = torch.ones(batch, context, dtype=torch.long, device=device)
    return replace(read.prompt, kwargs={**kwargs, read.name: read.cache, "use_cache": True}, sizes=sizes)


def labelled_sizes(inputs: ExampleInputs) -> AbstractContextManager[None]:
    """Return a context for an export in which equal labels of `decode_inputs` share a symbol."""
    if not inputs.sizes or inputs.cache is not None:
        return nullcontext()
    leaves = tree_leaves(next(inputs.kwargs[name] for name in _CACHES if name in inputs.kwargs))
    return shared_sizes([(leaves[int(index)], labels) for index, labels in inputs.sizes.items()])


@dataclass(frozen=True)
class _Read:
    """A prompt that a model has read, the name of the argument for its cache, and the cache."""

    prompt: ExampleInputs
    name: str
    cache: Any

    @property
    def length(self) -> int:
        return int(self.prompt.kwargs["input_ids"].shape[1])


def _read(module: nn.Module, prompt: ExampleInputs) -> _Read:
    """Run the model on the text of a prompt."""
    name, config = type(module).__name__, cast("Any", module.config)
    text = {key: value for key, value in prompt.kwargs.items() if key in _TEXT}
    left_out = (prompt.kwargs.keys() - _TEXT) | prompt.omitted.keys()
    if "input_ids" not in text or config.is_encoder_decoder:
        raise SourceError(f"{name} does not read a prompt of text alone, so a decode step cannot be planned")
    # Without the exporter's patches, which change the layers of a cache with a window.
    with torch.no_grad(), kernels_of_hub(module):
        try:
            returned = module(**text, use_cache=True)
        except _TooManyCallsError:
            raise
        except Exception as error:
            if not left_out:
                raise
            others = ", ".join(sorted(left_out))
            raise SourceError(f"{name} does not run without {others}: {type_and_line(error)}") from error
    for parameter in _CACHES:
        if (cache := getattr(returned, parameter, None)) is not None:
            check_text_cache(module, cache, left_out)
            return _Read(prompt, parameter, cache)
    raise SourceError(f"{name} does not return a cache, so a decode step cannot be planned")


_BATCH, _TOKENS = "batch", "tokens"
_KNOWN = (None, _BATCH, _TOKENS)


def _labels(read: _Read, other: _Read, batch: int) -> Iterator[tuple[str, tuple[str | None, ...]]]:
    """Yield the labels of each tensor of a cache, by its index in the cache.

    `other` is a prompt of a different length, and its cache.
    """
    lengths = read.length, other.length
    leaves, others = tree_leaves(read.cache), tree_leaves(other.cache)
    for index, leaf in enumerate(leaves):
        if isinstance(leaf, torch.Tensor):
            # A cache that gets more tensors with more tokens has unknown sizes.
            twin = others[index].shape if len(others) == len(leaves) else [None] * leaf.dim()
            labels: list[str | None] = []
            for dim, sizes in enumerate(zip(leaf.shape, twin, strict=True)):
                if sizes[0] == sizes[1]:
                    labels.append(_BATCH if dim == 0 and sizes[0] == batch else None)
                elif sizes == lengths:
                    labels.append(_TOKENS)
                else:
                    pairs = zip(sizes, lengths, strict=True)
                    after = " and ".join(f"{size} after {length:,} tokens" for size, length in pairs)
                    labels.append(f"{read.name}_{index}.{dim} is {after}")
            yield str(index), tuple(labels)


class _TooManyCallsError(FakexportError):
    """A prompt takes more calls of torch functions than the limit."""


class _CallLimit(TorchFunctionMode):
    """Count the calls of torch functions, and raise `_TooManyCallsError` at the limit."""

    def __init__(self, limit: float = math.inf) -> None:
        super().__init__()
        self.count, self._limit = 0, limit

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.count += 1
        if self.count > self._limit:
            limit, self._limit = self._limit, math.inf  # Leaving `torch.no_grad()` is a call too.
            raise _TooManyCallsError(f"more than {limit:,} calls of torch functions")
        return func(*args, **(kwargs or {}))


def check_text_cache(module: nn.Module, cache: Any, left_out: Collection[str]) -> None:
    """Reject the cache of a prompt of text if the inputs `left_out` fill layers that are empty.

    An example is cross-attention to images, as in Llama 3.2 Vision.
    """
    layers = getattr(cache, "layers", ())
    if left_out and not all(getattr(layer, "is_initialized", True) for layer in layers):
        raise SourceError(
            f"{type(module).__name__} caches less without {', '.join(sorted(left_out))}, so a decode step "
            "after a prompt of text alone would lack keys and values"
        )


def _short_context(module: nn.Module) -> int:
    """Return a context that is longer than every window in the config."""
    config: Any = module.config
    config = config.get_text_config(decoder=True)
    windows = [getattr(config, name, None) for name in _WINDOWS]
    return _SHORT_TOKENS + max((window for window in windows if isinstance(window, int)), default=0)
