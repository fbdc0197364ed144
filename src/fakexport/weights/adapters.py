"""A checkpoint of a base model together with adapters for it, and adapters merged into it as peft does."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

import torch
from torch import nn

from fakexport._torch.quiet_logs import torch_logs_silenced
from fakexport._torch.real_execution import real_execution
from fakexport.capture import build_source
from fakexport.devices import emulate
from fakexport.documents import AdapterRecord
from fakexport.error import InvalidValue
from fakexport.sources import AdapterFolder, adapter_source, check_mergeable, lora_layers, resolve, split_name
from fakexport.weights.bound_weights import is_finite
from fakexport.weights.checkpoint import Checkpoint, CheckpointError
from fakexport.weights.expectation import ExpectedWeights

MERGED = "merged"
"What is written instead of a folder for a checkpoint that an adapter is merged into already."


@dataclass(frozen=True)
class OpenedAdapter:
    """An adapter of an open checkpoint.

    Args:
        folder: Its folder.
        name: What its names in the checkpoint begin with, before a period; empty for none.
        tensors: Its file.
    """

    folder: AdapterFolder
    name: str
    tensors: Checkpoint

    def tensor(self, key: str) -> torch.Tensor:
        """Return a tensor, in the dtype in which peft has it: float32 where the file has half of that."""
        value = self.tensors.tensor(key)
        return value.float() if value.dtype in (torch.float16, torch.bfloat16) else value


def with_adapters(checkpoint: Checkpoint, adapters: Sequence[tuple[str, Checkpoint | None]]) -> Checkpoint:
    """Return a checkpoint that has the tensors of adapters as well.

    Args:
        adapters: `DIR`, `NAME=DIR` or `merged`, each with its open file; None for `merged`.
    Raises:
        CheckpointError: Two of the names are alike.
        SourceError: A folder has no LoRA adapter.
    """
    entries, read = dict(checkpoint.entries), checkpoint.read
    opened = []
    origin: dict[str, tuple[Checkpoint, str]] = {}
    for text, tensors in adapters:
        if tensors is None:
            checkpoint = replace(checkpoint, is_merged=True)
            continue
        name, path = split_name(text)
        opened.append(OpenedAdapter(AdapterFolder.read(path), name, tensors))
        for key, entry in tensors.entries.items():
            own = f"{name}.{key}" if name else key
            if own in entries:
                raise CheckpointError(f"{own!r} is in {checkpoint.location} and in {path}; name the adapter")
            # Not in a file of the base model, which a link would be into.
            entries[own] = replace(entry, file=None, offset=None)
            origin[own] = tensors, key

    def read_either(name: str) -> torch.Tensor:
        if name in origin:
            file, key = origin[name]
            return file.tensor(key)
        return read(name)

    return replace(
        checkpoint,
        entries=MappingProxyType(entries),
        read=read_either,
        adapters=tuple(opened),
        base=frozenset(checkpoint.entries),
    )


def as_needed(
    checkpoint: Checkpoint, record: AdapterRecord | None, expected: ExpectedWeights, *, name: str
) -> Checkpoint:
    """Return the checkpoint as a program reads it: with the adapters as weights, or without them.

    Raises:
        ValueError: The program needs an adapter differently, or would be bound without its adapter.
    """
    mode = None if record is None else record.mode
    given = checkpoint.adapters
    if mode == "merged" and not given and not checkpoint.is_merged:
        raise InvalidValue(
            f"{name} was exported with an adapter merged, and {checkpoint.location} was given without one: "
            f"pass --adapter DIR with the base model's checkpoint, or --adapter merged for one that has the "
            f"adapter merged already"
        )
    if mode == "inputs" and given:
        raise InvalidValue(
            f"{name} takes its adapter as inputs: bind it without one, and pass --adapter when it is run"
        )
    if mode != "apart" and len(given) > 1:
        raise InvalidValue(f"{name} takes one adapter, not {len(given)}")
    if not given:
        return checkpoint
    if mode == "apart":
        return _in_dtypes(checkpoint, expected)
    kept = {entry: about for entry, about in checkpoint.entries.items() if entry in checkpoint.base}
    return replace(checkpoint, entries=MappingProxyType(kept))


def _in_dtypes(checkpoint: Checkpoint, expected: ExpectedWeights) -> Checkpoint:
    """Return the checkpoint with adapters in the floating-point dtypes of the program, as peft loads them."""
    wanted = expected.all
    entries = {
        name: replace(entry, dtype=wanted[name].dtype)
        if name not in checkpoint.base
        and name in wanted
        and entry.dtype.is_floating_point
        and wanted[name].dtype.is_floating_point
        else entry
        for name, entry in checkpoint.entries.items()
    }
    return replace(checkpoint, entries=MappingProxyType(entries))


def adapter_of(text: str | Path) -> Path | None:
    """Return the folder that `--adapter` names; None for `merged`."""
    return None if str(text) == MERGED else Path(split_name(text)[1])


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
