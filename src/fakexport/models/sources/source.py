"""Sources of models: construct the module, provide example inputs, and patch the module for its trace."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

from fakexport.files.documents import CallRecord
from fakexport.models.sources.generation.cache_slots import CacheLayout
from fakexport.models.sources.quantized.quantization import Quantization


@dataclass(frozen=True)
class ExampleInputs:
    """Example arguments for one call of a module.

    Args:
        args: Positional arguments.
        kwargs: Keyword arguments, in the order of the program's inputs.
        assumptions: Sentences for the report that say how these inputs were chosen.
        omitted: Inputs of `forward` that could not be derived: name -> reason, as a clause. Without them,
            parts of the model may not run.
        is_partial: Whether the call skips parts of the model on purpose: a decode step without the encoder or
            the images.
        call: The role of each input in generation, or None if the call is not for generation.
        cache: The layout of the cache, whose tensors are passed by name.
        sizes: Labels for the dimensions of the cache tensors, by name. Equal sizes share a label
            (`cache_sizes`).
        buffers: Zeros for a cache that the program stores in buffers. During the trace, they are buffers of
            the module.
        part: Instructions for computing a component of a model from these inputs, or None for the whole
            model.
        adapter: Names of the inputs that are tensors of an adapter.
    """

    args: tuple[Any, ...] = ()
    kwargs: Mapping[str, Any] = field(default_factory=dict)
    assumptions: tuple[str, ...] = ()
    omitted: Mapping[str, str] = field(default_factory=dict)
    is_partial: bool = False
    call: CallRecord | None = None
    cache: CacheLayout | None = None
    sizes: Mapping[str, tuple[str | None, ...]] = field(default_factory=dict)
    buffers: Mapping[str, torch.Tensor] = field(default_factory=dict)
    part: Any = None
    adapter: frozenset[str] = frozenset()


def no_patches(module: nn.Module, inputs: ExampleInputs) -> AbstractContextManager[None]:
    """Return a context that has no effect. It is the `tracing` of sources that need no patches."""
    return nullcontext()


@dataclass(frozen=True)
class Source:
    """A model that is constructed separately for each target.

    A source does not depend on a device: the caller sets the default device and the default dtype while
    calling `factory`, and passes both to `example_inputs`.

    Args:
        spec: The text as the user wrote it.
        kind: The origin of the model: `python`, or the package of a library.
        factory: Constructs the module. Called in a fake mode, with the caller's default device and dtype.
            Returns a module, `(module, args)` or `(module, args, kwargs)`. Modules of `transformers` and
            `timm` are in eval mode. Modules of a Python factory keep the mode that the factory sets. An
            existing module can be used instead of a factory.
        example_inputs: Takes the module, the device of the inputs, and the dtype of floating point inputs
            (None: the module's own). Called in the fake mode of the module. Raises `SourceError` if the
            inputs are unknown, for example if a Python factory returns only a module.
        prepare: Called before `factory`, in the `emulate` block of the target and outside of the fake mode.
        tracing: Returns a context with patches for tracing the module with the inputs in `torch.export`.
        dtype: The dtype that the source specifies (`"dtype"` of a config file), or None. It is used as the
            default dtype unless the user requests a different one.
        assumptions: Sentences about how an ambiguous spec was interpreted, for the report.
        left_out: Features of the model that this source omits, for the archive: one sentence per feature.
        component: Name of the part of the model that is traced, or None for the whole model.
        quantization: The quantization of the published weights, or None if they are not quantized.
        parts: Function that takes a spec for messages and the name of a component, and returns the
            component's source. None if no component is a separate model.
        adapter: The adapter on the model, with the names of its weights, or None.
        published: An imperative clause for errors that a library's default config causes. It says what to
            pass instead. None if the user specified the config.
        parallel: The rank that this source is for, or None for the whole model.
        settings: The settings in the published `config.json`, from `flat_settings`.
    """

    spec: str
    kind: str
    factory: Callable[[], Any]
    example_inputs: Callable[[nn.Module, str, torch.dtype | None], ExampleInputs]
    prepare: Callable[[], None] = lambda: None
    tracing: Callable[[nn.Module, ExampleInputs], AbstractContextManager[None]] = no_patches
    dtype: torch.dtype | None = None
    assumptions: tuple[str, ...] = ()
    left_out: tuple[str, ...] = ()
    component: str | None = None
    quantization: Quantization | None = None
    parts: Callable[[str, str], Source] | None = None
    adapter: Any = None
    published: str | None = None
    parallel: Any = None
    settings: Mapping[str, str] = field(default_factory=dict)
