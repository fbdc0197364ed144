"""The two calls of generation as programs: prefill reads the prompt, decode reads one token and the cache.

The cache is inputs and outputs of the program, as plain tensors by name; or a static one is buffers that the
program writes into (`kept_cache`). So that a program says at any length
what the model says, a layer with a window keeps every token, and its mask applies the window: a cache that is
cut to the window counts its tokens in Python, and a program would have the count of the example.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any

import torch
from torch import nn

from fakexport._torch.shared_sizes import shared_sizes
from fakexport.documents import CallRecord
from fakexport.error import type_and_line
from fakexport.sources.cache_slots import CacheLayout
from fakexport.sources.exchanged_forward import exchanged_forward
from fakexport.sources.generation_defaults import generation_defaults
from fakexport.sources.input_request import InputRequest
from fakexport.sources.kept_cache import START, empty_buffers, kept_cache, keys_and_values, static_cache
from fakexport.sources.source import ExampleInputs
from fakexport.sources.source_error import SourceError
from fakexport.sources.transformers_inputs import derive_inputs

# The cache of a model without attention. Its mask is for the tokens that are read, and not for those before:
# with a longer one, the sizes would broadcast to other numbers.
_STATES = "cache_params"
_CACHES = ("past_key_values", _STATES)
_ENCODED = "encoder_last_hidden_state"
_ENCODER_OUTPUTS = "encoder_outputs"
_MASK = "attention_mask"
_DECODER_MASK = "decoder_attention_mask"
_POSITIONS = "position_ids"
# These go through the prompt in a loop of Python, which a program has for one length. So their prefill reads
# as many tokens as the convolution does, and decode the others. The program of zamba was seen to return other
# tokens than transformers.
_LOOPING: Mapping[str, str] = MappingProxyType(
    {"jamba": "mamba_d_conv", "mamba": "conv_kernel", "falcon_mamba": "conv_kernel"}
)
_REFUSED = frozenset({"zamba"})
_LAST_ONLY = "logits_to_keep"

Patches = Callable[[nn.Module, ExampleInputs], AbstractContextManager[None]]


@dataclass(frozen=True)
class GenerationCall:
    """One of the two calls of a model of transformers.

    Args:
        workload: `prefill` or `decode`.
        batch: Sequences of the example; a program of 1 takes no other number.
        tokens: Tokens of the example's prompt.
        patches: What the library needs patched while it is traced.
        capacity: Tokens that a static cache holds; None for a cache that grows.
        is_kept: Whether the static cache is buffers of the program.
    """

    workload: str
    batch: int
    tokens: int
    patches: Patches
    capacity: int | None = None
    is_kept: bool = False

    def inputs(self, module: nn.Module, device: str, dtype: torch.dtype | None) -> ExampleInputs:
        """Return the example inputs of the call, the cache as tensors by name.

        Raises:
            SourceError: the model does not generate with a cache, or with one that a program cannot take.
        """
        config: Any = module.config
        if config.model_type in _REFUSED:
            raise SourceError(
                f"{type(module).__name__} goes through the prompt in a loop of Python, so a program reads "
                "prompts of one length: it cannot be exported to generate"
            )
        kernel = _LOOPING.get(config.model_type)
        length = self.tokens if kernel is None else max(2, getattr(config, kernel))
        sequence = length if self.workload == "prefill" else self.tokens
        derived = derive_inputs(module, device, dtype, batch=self.batch, sequence=sequence)
        self._refuse_other_loops(module, derived.kwargs)
        prompt = replace(derived, kwargs=_prompt(module, derived.kwargs, self.workload))
        record = _record(module, prompt.kwargs, self.workload)
        if self.workload == "prefill" and not self.is_kept:
            return replace(prompt, call=replace(record, capacity=self.capacity))
        try:
            return (self._kept if self.is_kept else self._decoded)(module, prompt, record)
        except SourceError:
            raise
        except Exception as error:
            raise SourceError(
                f"the {self.workload} inputs of {type(module).__name__} cannot be made, since the model does "
                f"not run on text alone: {type_and_line(error)}"
            ) from error

    def _refuse_other_loops(self, module: nn.Module, derived: Mapping[str, Any]) -> None:
        """Refuse a model that does not write one token after another, but several codes at a time."""
        from transformers.generation import GenerationMixin

        tokens = derived.get("decoder_input_ids", derived.get("input_ids"))
        is_row = tokens is None or (tokens.dim() == 2 and len(tokens) == self.batch)
        if not is_row or getattr(type(module), "_sample", None) not in (None, GenerationMixin._sample):
            raise SourceError(
                f"{type(module).__name__} does not write one token after another, but several codes at a "
                "time, in an order of its own: --workload forward exports it"
            )

    def _decoded(self, module: nn.Module, prompt: ExampleInputs, record: CallRecord) -> ExampleInputs:
        """Return the inputs of decode, once the model has read the prompt."""
        with torch.no_grad(), self.patches(module, prompt):
            read = _text_of(prompt.kwargs, record)
            returned = module(**read, **self._empty_cache(module))
            name, layout, tensors = _cache_of(module, returned)
            if name == _STATES:
                record = replace(record, mask=None)
            kwargs = self._next(read, record, returned)
            after = module(
                **kwargs, **self._decoder_mask(module, read, record), **{name: layout.filled(tensors)}
            )
            _, layout_after, tensors_after = _cache_of(module, after)
            layout.refuse_counting(layout_after, type(module).__name__)
        return ExampleInputs(
            kwargs={**kwargs, name: tensors},
            assumptions=prompt.assumptions,
            call=replace(record, capacity=self.capacity),
            cache=layout,
            sizes=cache_sizes(
                tensors,
                tensors_after,
                is_batch_dynamic=self.batch > 1,
                is_static=self.capacity is not None,
            ),
        )

    def _decoder_mask(
        self, module: nn.Module, read: Mapping[str, torch.Tensor], record: CallRecord
    ) -> dict[str, torch.Tensor]:
        """Return the mask that a decoder with a static cache would make, but not in a trace.

        It would read how many tokens the cache has, which fake tensors of a GPU do not tell.
        """
        if self.capacity is None or not record.has_encoder:
            return {}
        if _DECODER_MASK not in inspect.signature(module.forward).parameters:
            return {}
        tokens = read[record.tokens]
        return {_DECODER_MASK: tokens.new_ones(self.batch, tokens.shape[1] + 1)}

    def _kept(self, module: nn.Module, prompt: ExampleInputs, record: CallRecord) -> ExampleInputs:
        """Return the inputs of a call that finds its cache in the program, and the buffers with the cache."""
        assert self.capacity is not None
        if record.has_encoder:
            raise SourceError(
                f"{type(module).__name__} has an encoder, whose keys and values a program cannot keep in "
                "buffers: leave out --cache-form buffers"
            )
        cache, left_out = keys_and_values(module, self.capacity), {record.mask, record.positions}
        with torch.no_grad(), self.patches(module, prompt):
            text = _text_of(prompt.kwargs, record)
            module(**{name: text[name] for name in text.keys() - left_out}, **{_CACHES[0]: cache})
        named = {name: value for name, value in prompt.kwargs.items() if name not in left_out}
        if self.workload == "decode":
            named = {record.tokens: text[record.tokens][:, :1].clone()}
        start = torch.zeros(1, dtype=torch.long, device=text[record.tokens].device)
        return replace(
            prompt,
            kwargs={**named, START: start},
            call=replace(record, mask=None, positions=None, start=START, capacity=self.capacity),
            buffers=empty_buffers(module, cache),
        )

    def _empty_cache(self, module: nn.Module) -> dict[str, Any]:
        """Return a static cache as the argument of prefill; nothing where the cache grows.

        What an encoder computed is kept as it is: in a static cache, it would count as tokens of the decoder.
        """
        if self.capacity is None:
            return {}
        from transformers import DynamicCache, EncoderDecoderCache

        config: Any = module.config
        cache = static_cache(module, self.capacity)
        if config.is_encoder_decoder:
            return {_CACHES[0]: EncoderDecoderCache(cache, DynamicCache(config=config))}
        return {_CACHES[0]: cache}

    def _next(self, read: Mapping[str, torch.Tensor], record: CallRecord, returned: Any) -> dict[str, Any]:
        """Return the inputs of the call after the prompt, but for the cache."""
        tokens = read[record.tokens]
        kwargs: dict[str, Any] = {record.tokens: tokens[:, :1].clone()}
        if record.mask is not None and record.has_encoder:
            kwargs[record.mask] = read[record.mask]
        elif record.mask is not None:
            kwargs[record.mask] = read[record.mask].new_ones(self.batch, tokens.shape[1] + 1)
        if record.positions is not None:
            kwargs[record.positions] = tokens.new_full((self.batch, 1), tokens.shape[1])
        if record.has_encoder:
            kwargs[_ENCODER_OUTPUTS] = (getattr(returned, _ENCODED),)
        return kwargs

    @contextmanager
    def tracing(self, module: nn.Module, inputs: ExampleInputs) -> Iterator[None]:
        """Enter a context in which `module` takes and returns the cache as tensors by name."""
        original = module.forward
        options = {_LAST_ONLY: 1} if _LAST_ONLY in inspect.signature(original).parameters else {}
        given = next((name for name in _CACHES if name in inputs.kwargs), None)
        # Where images have positions of their own, the model counts from the start of the cache.
        has_positions = _POSITIONS in inspect.signature(original).parameters and not any(
            hasattr(part, "get_rope_index") for part in module.modules()
        )

        def forward(**named: Any) -> dict[str, Any]:
            if self.is_kept:
                assert self.capacity is not None
                start = named.pop(START)
                if has_positions:
                    tokens = named["input_ids"]
                    steps = torch.arange(tokens.shape[1], device=tokens.device)
                    named[_POSITIONS] = (start + steps)[None]
                named[_CACHES[0]] = kept_cache(module, self.capacity, inputs.buffers, start)
                return {"logits": original(**named, **options).logits}
            if given is not None:
                assert inputs.cache is not None
                named[given] = inputs.cache.filled(named[given])
            else:
                named |= self._empty_cache(module)
            returned = original(**named, **options)
            name, _, tensors = _cache_of(module, returned)
            outputs = {"logits": returned.logits, name: tensors}
            encoded = getattr(returned, _ENCODED, None)
            return outputs if encoded is None else {**outputs, _ENCODER_OUTPUTS: (encoded,)}

        # With gradients, what a model writes makes a static cache require them.
        gradients = nullcontext() if self.capacity is None else torch.no_grad()
        cache = inputs.kwargs[given] if given is not None else {}
        shared = shared_sizes([(cache[name], labels) for name, labels in inputs.sizes.items()])
        with self.patches(module, inputs), gradients, shared, exchanged_forward(module, forward):
            for name, buffer in inputs.buffers.items():
                module.register_buffer(name, buffer, persistent=False)
            try:
                yield
            finally:
                for name in inputs.buffers:
                    delattr(module, name)


def use_own_operators(config: Any, model_class: Any, dtype: torch.dtype) -> None:
    """Choose experts that run on fakes outside of a trace too, where the cache is made: torch's product of
    groups takes bfloat16 alone there.
    """
    if dtype is not torch.bfloat16 and model_class._can_set_experts_implementation():
        config._experts_implementation = "batched_mm"


def _prompt(module: nn.Module, derived: Mapping[str, Any], workload: str) -> dict[str, Any]:
    """Return the inputs of prefill: with a position for each token where the model takes it, so that padding
    does not count. A decoder with an encoder starts from one token; the cache of an example of decode has
    more, since `torch.export` fixes a size of 1.
    """
    if "decoder_input_ids" in derived:
        read = slice(1 if workload == "prefill" else None)
        return {**derived, "decoder_input_ids": derived["decoder_input_ids"][:, read]}
    parameters = InputRequest(module, "cpu", torch.float32).parameters
    if "input_ids" not in derived or _POSITIONS in derived or _POSITIONS not in parameters:
        return dict(derived)
    tokens = derived["input_ids"]
    positions = torch.arange(tokens.shape[1], device=tokens.device).expand_as(tokens).clone()
    return {**derived, _POSITIONS: positions}


def _record(module: nn.Module, prompt: Mapping[str, Any], workload: str) -> CallRecord:
    has_decoder = "decoder_input_ids" in prompt
    if not has_decoder and "input_ids" not in prompt:
        raise SourceError(f"{type(module).__name__} does not generate text: it takes no input_ids")
    tokens = "decoder_input_ids" if has_decoder else "input_ids"
    return CallRecord(
        workload=workload,
        tokens=tokens,
        logits="logits",
        prompt="input_ids" if "input_ids" in prompt else None,
        mask=_MASK if _MASK in prompt else None,
        positions=_POSITIONS if _POSITIONS in prompt else None,
        defaults=generation_defaults(module),
    )


def _text_of(prompt: Mapping[str, Any], record: CallRecord) -> dict[str, Any]:
    """Return the inputs without images and sounds: the cache has the same form after text alone."""
    if record.has_encoder:
        return dict(prompt)
    names = (record.tokens, record.mask, record.positions)
    text = {name: prompt[name] for name in names if name is not None}
    return {**text, record.tokens: torch.zeros_like(text[record.tokens])}


def _cache_of(module: nn.Module, returned: Any) -> tuple[str, CacheLayout, dict[str, torch.Tensor]]:
    """Return the name under which a model takes its cache, the cache's layout, and its tensors.

    Raises:
        SourceError: it returns none.
    """
    for name in _CACHES:
        state = getattr(returned, name, None)
        if state is not None and getattr(returned, "logits", None) is not None:
            return name, *CacheLayout.of(state)
    raise SourceError(f"{type(module).__name__} does not return logits and a cache, so it does not generate")


_ATTENDED = re.compile(r"(?P<layers>.+)_(?:keys|values)")
_CROSS_ATTENTION = "cross_attention_cache_"
_NUMBERS = re.compile(r"\d+")


def cache_sizes(
    before: Mapping[str, torch.Tensor],
    after: Mapping[str, torch.Tensor],
    *,
    is_batch_dynamic: bool,
    is_static: bool = False,
) -> dict[str, tuple[str | None, ...]]:
    """Return a label for each dimension of the keys and values; sizes with the same label are equal.

    Layers that grow by one token remember the same ones, so their lengths are one size, of keys and of
    values. What an encoder computed does not grow, and its length is one size too where all layers have the
    same. A dimension without a label is constant. What else a cache has is left out.

    Args:
        before: The tensors of a cache by name, `[batch, heads, length, width]` for keys and values.
        after: The same after one more token.
        is_batch_dynamic: Whether the first size varies.
        is_static: Whether the layers that grow have their whole length from the start.
    """
    found: dict[str, tuple[str | None, ...]] = {}
    encoded = {tensor.shape[2:3] for name, tensor in before.items() if _CROSS_ATTENTION in name}
    for name, tensor in before.items():
        match = _ATTENDED.fullmatch(name)
        if match is None or tensor.dim() != 4:
            continue
        is_encoded = _CROSS_ATTENTION in name
        is_constant = is_static and not is_encoded
        grown = tuple(int(b) - int(a) for a, b in zip(tensor.shape, after[name].shape, strict=True))
        if grown != ((0, 0, 0, 0) if is_constant or is_encoded else (0, 0, 1, 0)):
            continue
        if is_encoded and len(encoded) > 1:
            continue
        group = _NUMBERS.sub("", match["layers"])
        batch = f"{group}, batch" if is_batch_dynamic else None
        length = f"{group}, {tensor.shape[2]} tokens" if not is_constant else None
        found[name] = (batch, None, length, None)
    return found
