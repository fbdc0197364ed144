"""A checkpoint of a base model together with adapters for it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType

import torch

from fakexport.documents import AdapterRecord
from fakexport.error import InvalidValue
from fakexport.sources import AdapterFolder, split_name
from fakexport.weights.checkpoint import Checkpoint, CheckpointError
from fakexport.weights.expectation import ExpectedWeights

MERGED = "merged"
"What is written in place of a folder for a checkpoint that an adapter is merged into already."


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
