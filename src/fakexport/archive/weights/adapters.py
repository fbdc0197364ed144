"""Open a base checkpoint together with LoRA adapters, and merge adapters as peft does."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

import torch

from fakexport._torch.operators.real_execution import real_execution
from fakexport._torch.quiet_logs import torch_logs_silenced
from fakexport.archive.weights.bound_weights import is_finite
from fakexport.archive.weights.checkpoint import Checkpoint
from fakexport.archive.weights.checkpoint_files import CheckpointError
from fakexport.archive.weights.expectation import ExpectedWeights
from fakexport.emulation.devices import emulate
from fakexport.error import InvalidValue
from fakexport.exporting.capture import build_source
from fakexport.files.documents import AdapterRecord
from fakexport.models.sources import (
    AdapterFolder,
    adapter_source,
    check_mergeable,
    lora_layers,
    resolve,
    split_name,
)

MERGED = "merged"
"""Passed instead of an adapter's folder if the adapter is already merged into the checkpoint."""


@dataclass(frozen=True)
class OpenedAdapter:
    """An adapter that was opened with a checkpoint, and the tensors of its file."""

    folder: AdapterFolder
    tensors: Checkpoint

    def tensor(self, key: str) -> torch.Tensor:
        """Return a tensor in the dtype that peft uses: float32 if it is stored as float16 or bfloat16."""
        value = self.tensors.tensor(key)
        return value.float() if value.dtype in (torch.float16, torch.bfloat16) else value


def with_adapters(checkpoint: Checkpoint, adapters: Sequence[tuple[str, Checkpoint | None]]) -> Checkpoint:
    """Return a checkpoint that also contains the tensors of adapters.

    `adapters` are pairs of an option's value (`DIR`, `NAME=DIR` or `merged`) and the adapter's opened file
    (None for `merged`).
    """
    entries, read = dict(checkpoint.entries), checkpoint.read
    opened = []
    origin: dict[str, tuple[Checkpoint, str]] = {}
    for text, tensors in adapters:
        if tensors is None:
            checkpoint = replace(checkpoint, is_merged=True)
            continue
        name, path = split_name(text)
        opened.append(OpenedAdapter(AdapterFolder.read(path), tensors))
        for key, entry in tensors.entries.items():
            own = f"{name}.{key}" if name else key
            if own in entries:
                raise CheckpointError(
                    f"both {checkpoint.location} and {path} contain {own!r}: give the adapter a name "
                    "(--adapter NAME=DIR)"
                )
            # The file is left out, because an archive may only link to files of the base model.
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
    """Return the checkpoint as a program reads it, with or without the adapters' tensors."""
    mode = None if record is None else record.mode
    given = checkpoint.adapters
    if mode == "merged" and not given and not checkpoint.is_merged:
        raise InvalidValue(
            f"{name} was exported with a merged adapter, but {checkpoint.location} was given without "
            "one: pass --adapter DIR with the base model's checkpoint, or --adapter merged for a "
            "checkpoint into which the adapter is already merged"
        )
    if mode == "inputs" and given:
        raise InvalidValue(
            f"{name} takes the adapter's tensors as inputs: bind it without --adapter, and pass --adapter to "
            "`fakexport run`"
        )
    if mode != "separate" and len(given) > 1:
        raise InvalidValue(f"{name} accepts one adapter, not {len(given)}")
    if not given:
        return checkpoint
    if mode == "separate":
        return _in_dtypes(checkpoint, expected)
    kept = {entry: about for entry, about in checkpoint.entries.items() if entry in checkpoint.base}
    return replace(checkpoint, entries=MappingProxyType(kept))


def _in_dtypes(checkpoint: Checkpoint, expected: ExpectedWeights) -> Checkpoint:
    """Give adapter entries the program's floating-point dtypes, because peft converts them on loading."""
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
    """Return the folder that a value of `--adapter` names, or None for `merged`."""
    return None if str(text) == MERGED else Path(split_name(text)[1])


Tensors = Mapping[str, torch.Tensor]


def merged_weights(tensors: Tensors, adapter: OpenedAdapter, spec: str) -> dict[str, torch.Tensor]:
    """Merge an adapter into the weights of its base model, and return the result on the CPU."""
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
                    raise InvalidValue(
                        f"{target} contains NaN or infinity after the adapter was merged into it"
                    )
                merged[target] = tensor.to(tensors[target].dtype)
            layer.to("meta")  # Frees the layer's memory.
    return merged


def base_spec(source: str, checkpoint: Checkpoint) -> str:
    """Return the source of a program's base model, with the checkpoint's `config.json` if it exists."""
    written = source.partition(" --adapter ")[0]
    class_name = written.removeprefix("hf:").partition(":")[2]
    config = None if checkpoint.folder is None else checkpoint.folder / "config.json"
    if config is not None and config.is_file():
        return f"hf:{config}:{class_name}" if class_name else f"hf:{config}"
    if not written.startswith("hf:"):
        raise InvalidValue(
            f"an adapter can only be merged into a transformers model, but {written or 'the program'} "
            "is not one"
        )
    return written


def _of(tensors: Tensors, name: str, spec: str) -> torch.Tensor:
    if name not in tensors:
        raise InvalidValue(f"the adapter changes {name} of {spec}, which is not a weight of the program")
    return tensors[name]


def _load(layer: Any, state: Tensors) -> None:
    """Load real tensors into a fake layer. Base weights are copied, because peft merges in place."""
    owned = {
        name: value.clone() if name.startswith("base_layer.") else value for name, value in state.items()
    }
    layer.load_state_dict(owned, assign=True)
