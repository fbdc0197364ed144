"""Use peft to insert the modules of a LoRA adapter into a model, and map the names of the weights.

Verified with peft 0.21.2.
"""

from __future__ import annotations

import importlib
import warnings
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

from fakexport._torch.quiet_logs import torch_logs_silenced
from fakexport.models.sources.adapters.adapter_config import BASE_PREFIX, AdapterFolder
from fakexport.models.sources.source_error import SourceError, first_line, import_library

_NAME = "default"
Shapes = Mapping[str, tuple[int, ...]]


@dataclass(frozen=True)
class AdaptedModel:
    """The names of a model's tensors after an adapter was inserted.

    Args:
        base: Tensors of the base model: name in the module -> name in the base model.
        adapter: Tensors of the adapter: name in the module -> name in the adapter's file.
        replaced: Tensors of the base model that the adapter replaces completely: name in the base model ->
            name in the adapter's file.
        tied: Groups of names in the base model that refer to the same tied tensor.
    """

    base: Mapping[str, str] = field(default_factory=dict)
    adapter: Mapping[str, str] = field(default_factory=dict)
    replaced: Mapping[str, str] = field(default_factory=dict)
    tied: tuple[tuple[str, ...], ...] = ()


def import_peft() -> Any:
    """Import peft outside of any fake mode."""
    with torch_logs_silenced(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return import_library("peft", "--adapter")


def adapt(module: nn.Module, folder: AdapterFolder, shapes: Shapes | None) -> AdaptedModel:
    """Insert the modules of an adapter into a model in place, and return the names of its weights.

    The model is not wrapped in peft's `PeftModel`, because the wrapper has no effect for LoRA.

    Raises:
        SourceError: the adapter does not fit the model.
    """
    before = _state(module)  # Keep the tensors alive, so that no new tensor reuses the id of an old one.
    model = _injected(module, folder)
    trained = dict(_adapter_names(model, module))
    _leave_out_originals(module)
    module.eval().requires_grad_(False)
    state = _state(module)
    groups: dict[int, list[str]] = {}
    for name, tensor in before.items():
        groups.setdefault(id(tensor), []).append(name)
    base = {name: _base_name(name, groups[id(t)]) for name, t in state.items() if id(t) in groups}
    adapter = _given(state, trained, base, shapes, folder)
    whole = {key: key.removeprefix(BASE_PREFIX).replace(".base_layer.", ".") for key in adapter.values()}
    return AdaptedModel(
        base={name: old for name, old in base.items() if name not in adapter},
        adapter=adapter,
        replaced={name: key for key, name in whole.items() if name in before},
        tied=tuple(tuple(names) for names in groups.values() if len(names) > 1),
    )


def _base_name(name: str, known: list[str]) -> str:
    """Return a tensor's name in the base model. `known` are its possible names before peft added modules."""
    same = name.replace(".base_layer.", ".")
    return same if same in known else known[0]


def lora_layers(module: nn.Module) -> Iterator[tuple[str, Any]]:
    """Yield the path and the module of each layer with LoRA matrices."""
    kind = importlib.import_module("peft.tuners.lora").LoraLayer
    for path, part in module.named_modules():
        if isinstance(part, kind):
            yield path, part


def _state(module: nn.Module) -> dict[str, torch.Tensor]:
    state = module.state_dict(keep_vars=True)
    return {name: value for name, value in state.items() if isinstance(value, torch.Tensor)}


def _injected(module: nn.Module, folder: AdapterFolder) -> Any:
    peft = import_peft()
    try:
        with warnings.catch_warnings():
            # For example, peft warns when it corrects `fan_in_fan_out`.
            warnings.simplefilter("ignore")
            config = peft.LoraConfig(**folder.settings, init_lora_weights=False, inference_mode=True)
            return peft.get_peft_model(module, config, _NAME)
    except (KeyError, TypeError, ValueError) as error:
        raise SourceError(
            f"the adapter {folder.path} does not fit {type(module).__name__}: {first_line(error)}"
        ) from error


def _adapter_names(model: Any, module: nn.Module) -> Iterator[tuple[str, str]]:
    """Yield the name in the module and the name in the adapter's file of each tensor that peft saves."""
    tags = {name: torch.empty(0, device="meta") for name in _state(module)}
    names = {id(tag): name for name, tag in tags.items()}
    utils = importlib.import_module("peft.utils.save_and_load")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        saved = utils.get_peft_model_state_dict(
            model, state_dict={f"{BASE_PREFIX}{name}": tag for name, tag in tags.items()}
        )
    for key, tag in saved.items():
        yield names[id(tag)], key


def _leave_out_originals(module: nn.Module) -> None:
    """For each module that the adapter replaces with a trained copy, remove the original module."""
    wrapper = importlib.import_module("peft.utils.other").ModulesToSaveWrapper
    for part in module.modules():
        if isinstance(part, wrapper):
            part.original_module = nn.Identity()


def _given(
    state: Mapping[str, torch.Tensor],
    trained: Mapping[str, str],
    base: Mapping[str, str],
    shapes: Shapes | None,
    folder: AdapterFolder,
) -> dict[str, str]:
    """Map names in the module to names in the adapter's file, and check the shapes.

    The file may lack tensors of the base model that peft sometimes saves, such as embeddings.
    """
    if shapes is None:
        return {name: key for name, key in trained.items() if name not in base}
    where = f"{folder.weights} does not fit the model"
    if missing := [key for name, key in trained.items() if key not in shapes and name not in base]:
        raise SourceError(f"{where}: missing keys: {_some(missing)}")
    if unknown := sorted(shapes.keys() - set(trained.values())):
        raise SourceError(f"{where}: unexpected keys: {_some(unknown)}")
    for name, key in trained.items():
        wanted = tuple(state[name].shape)
        if key in shapes and shapes[key] != wanted:
            raise SourceError(
                f"{where}: {key} has shape {list(shapes[key])}, but the model expects {list(wanted)}"
            )
    return {name: key for name, key in trained.items() if key in shapes}


def _some(names: list[str]) -> str:
    more = f" and {len(names) - 1} more" if len(names) > 1 else ""
    return f"{names[0]}{more}"
