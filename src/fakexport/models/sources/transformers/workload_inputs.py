"""Derive the inputs of a transformers model for the call of a workload."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from types import MappingProxyType
from typing import Any

import torch
from torch import nn

from fakexport.models.sources.media_inputs.processor_inputs import Processor
from fakexport.models.sources.source import ExampleInputs
from fakexport.models.sources.transformers.decode_inputs import decode_inputs
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
    """Return inputs of one forward pass, with labels if their shape is known.

    It is known for models with one label per token or per example, which the class name tells apart.
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
