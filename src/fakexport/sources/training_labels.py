"""Example inputs of a transformers model that is trained: those of a forward pass, and labels."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import nn

from fakexport.sources.source import ExampleInputs
from fakexport.sources.transformers_inputs import derive_inputs

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
    module: nn.Module, device: str, dtype: torch.dtype | None, *, batch: int = 2, sequence: int = 16
) -> ExampleInputs:
    """Return inputs of one forward pass with labels, if the model has a loss whose labels are known.

    Models with a label per token and those with a label per example have: their classes are named after it.

    Args:
        module, device, dtype, batch, sequence: As for `derive_inputs`.
    Raises:
        SourceError: as for `derive_inputs`.
    """
    found = derive_inputs(module, device, dtype, batch=batch, sequence=sequence)
    if "labels" not in inspect.signature(module.forward).parameters:
        return found
    shape = _shape(type(module).__name__, found.kwargs, batch)
    if shape is None:
        return found
    labels = torch.zeros(shape, device=device, dtype=torch.long)
    return replace(found, kwargs={**found.kwargs, "labels": labels})


def _shape(name: str, inputs: Mapping[str, Any], batch: int) -> tuple[int, ...] | None:
    tokens = next((inputs[own] for own in _TOKENS if own in inputs), None)
    if name.endswith(_OF_TOKENS) and tokens is not None:
        return tuple(tokens.shape)
    return (batch,) if name.endswith(_OF_EXAMPLES) else None
