"""Prefill, decode and chunk as programs.

Prefill reads the prompt, decode reads one token and the cache, and chunk reads any number of tokens and a
cache, which may be empty.

The cache is passed in and returned as plain named tensors. Alternatively, a static cache is kept in buffers
that the program writes (`kept_cache`). Layers with a sliding window keep every token, and the attention mask
applies the window. A cache that only keeps the window would count its tokens in Python, and a program would
always use the count from the example inputs.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any

import torch
from torch import nn

from fakexport._torch.tracing.input_shapes import shared_sizes
from fakexport.error import type_and_line
from fakexport.files.documents import CallRecord
from fakexport.models.sources.generation.cache_slots import CacheLayout, cache_sizes, is_attended
from fakexport.models.sources.generation.generation_defaults import generation_defaults
from fakexport.models.sources.generation.kept_cache import (
    START,
    empty_buffers,
    kept_cache,
    keys_and_values,
    static_cache,
)
from fakexport.models.sources.media_inputs.processor_inputs import Processor
from fakexport.models.sources.patched_forward import patched_forward
from fakexport.models.sources.source import ExampleInputs
from fakexport.models.sources.source_error import SourceError
from fakexport.models.sources.transformers.decode_inputs import check_text_cache
from fakexport.models.sources.transformers.input_request import InputRequest
from fakexport.models.sources.transformers.transformers_inputs import derive_inputs

# The cache of a model without attention. The mask of such a model covers only the new tokens, because a
# longer mask would broadcast to the wrong size.
_STATES = "cache_params"
_CACHES = ("past_key_values", _STATES)
_ENCODED = "encoder_last_hidden_state"
_ENCODER_OUTPUTS = "encoder_outputs"
_MASK = "attention_mask"
_DECODER_MASK = "decoder_attention_mask"
_POSITIONS = "position_ids"
# These models process the prompt in a Python loop, which the trace unrolls for one length. Therefore, prefill
# reads as many tokens as the convolution does, and decode reads the remaining tokens. Zamba is rejected,
# because its exported program returned different tokens than transformers.
_LOOPING: Mapping[str, str] = MappingProxyType(
    {"jamba": "mamba_d_conv", "mamba": "conv_kernel", "falcon_mamba": "conv_kernel"}
)
_REFUSED = frozenset({"zamba"})
_LAST_ONLY = "logits_to_keep"

Patches = Callable[[nn.Module, ExampleInputs], AbstractContextManager[None]]


@dataclass(frozen=True)
class GenerationCall:
    """A prefill, decode or chunk call of a transformers model.

    Args:
        workload: `prefill`, `decode` or `chunk`.
        batch: Number of sequences in the example inputs. If it is 1, the program only accepts one sequence.
        tokens: Number of tokens in the example's prompt.
        patches: Function that returns a context manager, which patches transformers during the trace.
        capacity: Number of tokens in a static cache, or None for a growing cache.
        is_kept: Whether the static cache is stored in buffers of the program.
        processor: As for `derive_inputs`.
    """

    workload: str
    batch: int
    tokens: int
    patches: Patches
    capacity: int | None = None
    is_kept: bool = False
    processor: Processor | None = None

    def inputs(self, module: nn.Module, device: str, dtype: torch.dtype | None) -> ExampleInputs:
        """Return the example inputs of the call, with the cache as tensors by name.

        Raises:
            SourceError: the model does not generate with a cache, or its cache cannot be used in a program.
        """
        config: Any = module.config
        if config.model_type in _REFUSED:
            raise SourceError(
                f"{type(module).__name__} processes the prompt in a Python loop, so a program "
                "supports only one prompt length: it cannot be exported for generation"
            )
        kernel = _LOOPING.get(config.model_type)
        length = self.tokens if kernel is None else max(2, getattr(config, kernel))
        sequence = length if self.workload == "prefill" else self.tokens
        derived = derive_inputs(
            module, device, dtype, batch=self.batch, sequence=sequence, processor=self.processor
        )
        self._refuse_other_loops(module, derived.kwargs)
        prompt = replace(derived, kwargs=_prompt(module, derived.kwargs))
        record = _record(module, prompt.kwargs, self.workload)
        if self.workload == "prefill" and not self.is_kept:
            return replace(prompt, call=replace(record, capacity=self.capacity))
        try:
            return (self._kept if self.is_kept else self._decoded)(module, prompt, record)
        except SourceError:
            raise
        except Exception as error:
            raise SourceError(
                f"the {self.workload} inputs of {type(module).__name__} cannot be derived because "
                f"the model does not run on text alone: {type_and_line(error)}"
            ) from error

    @property
    def _new(self) -> int:
        """Number of tokens in the example of a call that reads a cache. `torch.export` specializes on 1."""
        return 3 if self.workload == "chunk" else 1

    def _refuse_other_loops(self, module: nn.Module, derived: Mapping[str, Any]) -> None:
        """Reject a model that generates several codebook tokens per step, or samples in its own way."""
        from transformers.generation import GenerationMixin

        tokens = derived.get("decoder_input_ids", derived.get("input_ids"))
        is_row = tokens is None or (tokens.dim() == 2 and len(tokens) == self.batch)
        if not is_row or getattr(type(module), "_sample", None) not in (None, GenerationMixin._sample):
            raise SourceError(
                f"{type(module).__name__} does not generate one token per step (it reads several "
                "codebooks or overrides sampling): use --workload forward to export it"
            )

    def _decoded(self, module: nn.Module, prompt: ExampleInputs, record: CallRecord) -> ExampleInputs:
        """Run the model on the prompt, and return the inputs of the call after it."""
        with torch.no_grad(), self.patches(module, prompt):
            read = _text_of(prompt.kwargs, record)
            returned = module(**read, **self._empty_cache(module))
            name, layout, tensors = _cache_of(module, returned)
            left_out = _left_out(prompt, read)
            check_text_cache(module, getattr(returned, name), left_out)
            if name == _STATES:
                record = replace(record, mask=None)
            if self.workload == "chunk" and (record.has_encoder or not all(map(is_attended, tensors))):
                raise SourceError(
                    f"{type(module).__name__} has an encoder or a state other than keys and values, which "
                    "cannot be empty: use --workload generate"
                )
            kwargs = self._next(read, record, returned)
            after = module(
                **kwargs, **self._decoder_mask(module, read, record), **{name: layout.filled(tensors)}
            )
            _, layout_after, tensors_after = _cache_of(module, after)
            layout.refuse_counting(layout_after, type(module).__name__)
        return ExampleInputs(
            kwargs={**kwargs, name: tensors},
            assumptions=prompt.assumptions,
            is_partial=record.has_encoder or bool(left_out),
            call=replace(record, capacity=self.capacity),
            cache=layout,
            sizes=cache_sizes(
                tensors,
                tensors_after,
                is_batch_dynamic=self.batch > 1,
                is_static=self.capacity is not None,
                new=self._new,
            ),
        )

    def _decoder_mask(
        self, module: nn.Module, read: Mapping[str, torch.Tensor], record: CallRecord
    ) -> dict[str, torch.Tensor]:
        """Return the decoder mask for an encoder-decoder model with a static cache, else nothing.

        If the model created the mask during the trace, it would read the number of tokens in the cache, which
        is unknown for fake tensors on a GPU.
        """
        if self.capacity is None or not record.has_encoder:
            return {}
        if _DECODER_MASK not in inspect.signature(module.forward).parameters:
            return {}
        tokens = read[record.tokens]
        return {_DECODER_MASK: tokens.new_ones(self.batch, tokens.shape[1] + 1)}

    def _kept(self, module: nn.Module, prompt: ExampleInputs, record: CallRecord) -> ExampleInputs:
        """Return the inputs of a call whose cache is in buffers of the program, and these buffers."""
        assert self.capacity is not None
        if record.has_encoder:
            raise SourceError(
                f"{type(module).__name__} has an encoder, and a program cannot keep the encoder's keys and "
                "values in buffers: remove --cache-form buffers"
            )
        cache, left_out = keys_and_values(module, self.capacity), {record.mask, record.positions}
        with torch.no_grad(), self.patches(module, prompt):
            text = _text_of(prompt.kwargs, record)
            module(**{name: text[name] for name in text.keys() - left_out}, **{_CACHES[0]: cache})
        images = _left_out(prompt, text)
        check_text_cache(module, cache, images)
        named = {name: value for name, value in prompt.kwargs.items() if name not in left_out}
        if self.workload == "decode":
            named = {record.tokens: text[record.tokens][:, :1].clone()}
        start = torch.zeros(1, dtype=torch.long, device=text[record.tokens].device)
        return replace(
            prompt,
            kwargs={**named, START: start},
            is_partial=self.workload == "decode" and bool(images),
            call=replace(record, mask=None, positions=None, start=START, capacity=self.capacity),
            buffers=empty_buffers(module, cache),
        )

    def _empty_cache(self, module: nn.Module) -> dict[str, Any]:
        """Return an empty static cache as an argument of prefill; nothing for a growing cache.

        The encoder's part of the cache is not static, because its tokens would then be counted as tokens of
        the decoder.
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
        """Return the inputs of the call that follows the prompt, without the cache."""
        tokens = read[record.tokens]
        length = tokens.shape[1] + self._new
        kwargs: dict[str, Any] = {record.tokens: tokens[:, : self._new].clone()}
        if record.mask is not None and record.has_encoder:
            kwargs[record.mask] = read[record.mask]
        elif record.mask is not None:
            kwargs[record.mask] = read[record.mask].new_ones(self.batch, length)
        if record.positions is not None:
            places = torch.arange(tokens.shape[1], length, device=tokens.device)
            kwargs[record.positions] = places.expand(self.batch, self._new).clone()
        if record.has_encoder:
            kwargs[_ENCODER_OUTPUTS] = (getattr(returned, _ENCODED),)
        return kwargs

    @contextmanager
    def tracing(self, module: nn.Module, inputs: ExampleInputs) -> Iterator[None]:
        """Enter a context in which the module's `forward` accepts and returns the cache as named tensors."""
        original = module.forward
        parameters = inspect.signature(original).parameters
        options = {_LAST_ONLY: 1} if _LAST_ONLY in parameters and self.workload != "chunk" else {}
        given = next((name for name in _CACHES if name in inputs.kwargs), None)
        # If images have their own positions, the model counts positions from the start of the cache.
        has_positions = _POSITIONS in parameters and not any(
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

        # With gradients enabled, a static cache that the model writes to would require gradients.
        gradients = nullcontext() if self.capacity is None else torch.no_grad()
        cache = inputs.kwargs[given] if given is not None else {}
        shared = shared_sizes([(cache[name], labels) for name, labels in inputs.sizes.items()])
        with self.patches(module, inputs), gradients, shared, patched_forward(module, forward):
            for name, buffer in inputs.buffers.items():
                module.register_buffer(name, buffer, persistent=False)
            try:
                yield
            finally:
                for name in inputs.buffers:
                    delattr(module, name)


def use_own_operators(config: Any, model_class: Any, dtype: torch.dtype) -> None:
    """Select an implementation of experts that also runs when the cache is created, outside of a trace.

    There, torch's grouped matrix product supports only bfloat16.
    """
    if dtype is not torch.bfloat16 and model_class._can_set_experts_implementation():
        config._experts_implementation = "batched_mm"


def _prompt(module: nn.Module, derived: Mapping[str, Any]) -> dict[str, Any]:
    """Return the inputs of prefill, with positions if accepted, so that padding has no effect."""
    parameters = InputRequest(module, "cpu", torch.float32).parameters
    is_known = "input_ids" not in derived or {_POSITIONS, "decoder_input_ids"} & derived.keys()
    if is_known or _POSITIONS not in parameters:
        return dict(derived)
    tokens = derived["input_ids"]
    positions = torch.arange(tokens.shape[1], device=tokens.device).expand_as(tokens).clone()
    return {**derived, _POSITIONS: positions}


def _record(module: nn.Module, prompt: Mapping[str, Any], workload: str) -> CallRecord:
    has_decoder = "decoder_input_ids" in prompt
    if not has_decoder and "input_ids" not in prompt:
        raise SourceError(f"{type(module).__name__} does not generate text because it has no input_ids")
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
    """Return only the text inputs. Without images and audio, the cache has the same structure."""
    if record.has_encoder:
        return dict(prompt)
    names = (record.tokens, record.mask, record.positions)
    text = {name: prompt[name] for name in names if name is not None}
    return {**text, record.tokens: torch.zeros_like(text[record.tokens])}


def _left_out(prompt: ExampleInputs, read: Mapping[str, Any]) -> set[str]:
    return (prompt.kwargs.keys() - read.keys()) | prompt.omitted.keys()


def _cache_of(module: nn.Module, returned: Any) -> tuple[str, CacheLayout, dict[str, torch.Tensor]]:
    """Return the name of the model's cache argument, the cache's layout, and its tensors."""
    for name in _CACHES:
        state = getattr(returned, name, None)
        if state is not None and getattr(returned, "logits", None) is not None:
            return name, *CacheLayout.of(state)
    raise SourceError(f"{type(module).__name__} does not return logits and a cache, so it does not generate")
