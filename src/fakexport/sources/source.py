"""What a source is: a way to construct a module, its example inputs, and what its trace needs."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

from fakexport.documents import CallRecord
from fakexport.sources.cache_slots import CacheLayout
from fakexport.sources.quantization import Quantization


@dataclass(frozen=True)
class ExampleInputs:
    """Arguments of one call of a module.

    Args:
        args: Positional arguments.
        kwargs: Keyword arguments, in the order in which the program takes them.
        assumptions: Sentences that name what was chosen for these inputs, for the report.
        omitted: Inputs that `forward` takes and that could not be derived: name -> a clause that says why.
            Without them a part of the model may not run.
        call: The part of each input in generation; None for a call that is not of it.
        cache: The layout of the cache that is among the inputs as tensors by name.
        sizes: Labels for the dimensions of its tensors, by name: equal sizes have one (`cache_sizes`).
        buffers: Zeros for a cache that the program keeps, which are buffers of its module during the trace.
        part: How a component of a model is computed of them; None for the whole model.
        adapter: The inputs that are tensors of an adapter.
    """

    args: tuple[Any, ...] = ()
    kwargs: Mapping[str, Any] = field(default_factory=dict)
    assumptions: tuple[str, ...] = ()
    omitted: Mapping[str, str] = field(default_factory=dict)
    call: CallRecord | None = None
    cache: CacheLayout | None = None
    sizes: Mapping[str, tuple[str | None, ...]] = field(default_factory=dict)
    buffers: Mapping[str, torch.Tensor] = field(default_factory=dict)
    part: Any = None
    adapter: frozenset[str] = frozenset()


def no_patches(module: nn.Module, inputs: ExampleInputs) -> AbstractContextManager[None]:
    """Return a context that changes nothing: the `tracing` of a source that needs no patches."""
    return nullcontext()


@dataclass(frozen=True)
class Source:
    """A model that can be constructed as often as there are targets.

    Nothing of it depends on a device: the caller chooses the default device and the default dtype around
    `factory`, and passes them to `example_inputs`.

    Args:
        spec: The text that it came from, as the user wrote it.
        kind: Where the model comes from: `python`, or the package of a library.
        factory: Constructs the module; called inside a fake mode, on the caller's default device and
            dtype. Returns a module, `(module, args)` or `(module, args, kwargs)`. Modules of `transformers`
            and `timm` come in eval mode; those of a Python factory as the factory leaves them. A module that
            is there already stands for itself.
        example_inputs: Takes the module, the device of the inputs and the dtype of the floating-point
            ones (None: the module's own). Called in the fake mode of the module. Raises `SourceError` if
            it cannot tell them, as a Python factory that returns a module alone.
        run_inputs: As `example_inputs`, for a run that finds the parts of a model that itself takes something
            else than tensors; None: `example_inputs` does.
        prepare: Called before `factory`, in the `emulate` block of the target and outside of the fake mode.
        tracing: Gives what must be patched while `torch.export` traces the module with the inputs.
        dtype: The dtype that the source itself names (`"dtype"` of a config file), to be taken as the
            default dtype when no other is asked for. None: it names none.
        assumptions: Sentences that name what the spec left open and how it was read, for the report.
        left_out: What the model can do and this source leaves out, one sentence each, for the archive.
        component: The part of the model that `tracing` traces; None for all of it.
        quantization: How the published weights are quantized, if the source asks for that; else None.
        parts: Returns the source of a part, from a spec for messages and its name, where a part is a model of
            its own; None: it has no such parts.
        adapter: The adapter that is on the model, and the names of its weights; None where there is none.
        published: What to pass where the model is a library's default, and its config is at fault, as an
            imperative clause; None for a model that the user described.
        parallel: The rank whose part of the model this is; None for all of it.
    """

    spec: str
    kind: str
    factory: Callable[[], Any]
    example_inputs: Callable[[nn.Module, str, torch.dtype | None], ExampleInputs]
    run_inputs: Callable[[nn.Module, str, torch.dtype | None], ExampleInputs] | None = None
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
