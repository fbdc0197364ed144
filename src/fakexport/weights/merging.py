"""The weights of a base model with an adapter merged into them, as peft merges it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import nn

from fakexport._torch.quiet_logs import torch_logs_silenced
from fakexport._torch.real_execution import real_execution
from fakexport.capture import build_source
from fakexport.devices import emulate
from fakexport.error import InvalidValue
from fakexport.sources import adapter_source, check_mergeable, lora_layers, resolve
from fakexport.weights.adapters import OpenedAdapter
from fakexport.weights.bound_weights import is_finite
from fakexport.weights.checkpoint import Checkpoint

Tensors = Mapping[str, torch.Tensor]


def merged_weights(tensors: Tensors, adapter: OpenedAdapter, spec: str) -> dict[str, torch.Tensor]:
    """Return the weights of a base model with an adapter merged into them, on the CPU.

    Raises:
        SourceError: The adapter does not fit the model, or changes one name of a tied weight.
        ValueError: The model is another one than that of the weights; a merged weight is not finite.
    """
    source = adapter_source(resolve(spec), adapter.folder.path)
    with torch_logs_silenced(), emulate("cpu") as devices:
        module = build_source(source, devices).module
    made = source.adapter.made(module)
    check_mergeable(module, made)
    whole = {key: name for name, key in made.replaced.items()}
    merged = dict(tensors)

    def value(name: str) -> torch.Tensor:
        if name in made.adapter:
            return adapter.tensor(made.adapter[name])
        return _of(tensors, made.base[name], spec)

    with real_execution(), torch.no_grad():
        for name, key in made.replaced.items():
            merged[name] = adapter.tensors.tensor(key).to(_of(tensors, name, spec).dtype)
        for path, layer in lora_layers(module):
            _load(layer, {name: value(f"{path}.{name}") for name in layer.state_dict()})
            layer.merge()
            for own, tensor in layer.get_base_layer().state_dict().items():
                name = f"{path}.base_layer.{own}"
                target = made.base[name] if name in made.base else whole[made.adapter[name]]
                if not is_finite(tensor):
                    raise InvalidValue(f"{target} is not finite with the adapter merged")
                merged[target] = tensor.to(tensors[target].dtype)
            _unload(layer)
    return merged


def base_spec(source: str, checkpoint: Checkpoint) -> str:
    """Return the text that names the base model of a program.

    Raises:
        ValueError: There is none.
    """
    written = source.partition(" --adapter ")[0]
    class_name = written.removeprefix("hf:").partition(":")[2]
    config = None if checkpoint.folder is None else checkpoint.folder / "config.json"
    if config is not None and config.is_file():
        return f"hf:{config}:{class_name}" if class_name else f"hf:{config}"
    if not written.startswith("hf:"):
        raise InvalidValue(
            f"an adapter is merged into a model of transformers, and {written or 'the program'} is none"
        )
    return written


def _of(tensors: Tensors, name: str, spec: str) -> torch.Tensor:
    if name not in tensors:
        raise InvalidValue(f"the adapter changes {name} of {spec}, which is not a weight of the program")
    return tensors[name]


def _load(layer: Any, state: Tensors) -> None:
    """Give a fake layer real tensors, in memory of their own: peft merges in place."""
    owned = {
        name: value.clone() if name.startswith("base_layer.") else value for name, value in state.items()
    }
    layer.load_state_dict(owned, assign=True)


def _unload(layer: nn.Module) -> None:
    """Give the memory of the matrices back."""
    layer.to("meta")
