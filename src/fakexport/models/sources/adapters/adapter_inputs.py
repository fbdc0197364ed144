"""Turn the tensors of an adapter into inputs of the program, so that one program works with all adapters."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import nn

from fakexport.models.sources.adapters.adapted_model import lora_layers
from fakexport.models.sources.adapters.adapter_config import BASE_PREFIX
from fakexport.models.sources.patched_forward import patched_forward
from fakexport.models.sources.source import ExampleInputs

SCALING = "lora_scaling"
"""Suffix of the input names for the scaling factors of layers."""


def input_name(key: str) -> str:
    """Return the lowercase name of the program input for a tensor in an adapter's file.

    Example:
        >>> input_name("base_model.model.h.0.attn.c_attn.lora_A.weight")
        'h_0_attn_c_attn_lora_a_weight'
    """
    return re.sub(r"\W", "_", key.removeprefix(BASE_PREFIX)).lower()


def with_adapter_inputs(
    inputs: ExampleInputs, module: nn.Module, adapter: Mapping[str, str]
) -> ExampleInputs:
    """Add the tensors of an adapter, and a scaling factor for each layer, to the example inputs.

    `adapter` maps the name of each tensor in the module to its name in the adapter's file.
    """
    state = module.state_dict()
    given = {input_name(key): torch.empty_like(state[name]) for name, key in adapter.items()}
    for path, layer in lora_layers(module):
        device = next(layer.parameters()).device
        given[_scaling_name(path)] = torch.ones((), dtype=torch.float32, device=device)
    return replace(inputs, kwargs={**inputs.kwargs, **given}, adapter=frozenset(given))


@contextmanager
def adapter_tracing(module: nn.Module, adapter: Mapping[str, str]) -> Iterator[None]:
    """Enter a context in which the model reads the tensors of the adapter from its inputs."""
    slots = {input_name(key): _Slot.of(module, name) for name, key in adapter.items()}
    layers = {_scaling_name(path): layer for path, layer in lora_layers(module)}
    scalings = {name: dict(layer.scaling) for name, layer in layers.items()}
    original = module.forward

    def forward(**named: Any) -> Any:
        for name, slot in slots.items():
            vars(slot.owner)[slot.attribute] = named.pop(name)
        for name, layer in layers.items():
            scaling = named.pop(name)
            layer.scaling = dict.fromkeys(layer.scaling, scaling)
        return original(**named)

    for slot in slots.values():
        del slot.owner._parameters[slot.attribute]
    try:
        with patched_forward(module, forward):
            yield
    finally:
        for slot in slots.values():
            vars(slot.owner).pop(slot.attribute, None)
            slot.owner._parameters[slot.attribute] = slot.parameter
        for name, layer in layers.items():
            layer.scaling = scalings[name]


@dataclass(frozen=True)
class _Slot:
    """A parameter that is temporarily replaced with an attribute that accepts any tensor."""

    owner: nn.Module
    attribute: str
    parameter: nn.Parameter

    @classmethod
    def of(cls, module: nn.Module, name: str) -> _Slot:
        path, _, attribute = name.rpartition(".")
        owner = module.get_submodule(path)
        parameter = owner._parameters[attribute]
        assert parameter is not None
        return cls(owner, attribute, parameter)


def _scaling_name(path: str) -> str:
    return input_name(f"{path}.{SCALING}")
