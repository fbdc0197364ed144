"""Checkpoints in several safetensors files."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

import torch

__all__ = ["INDEX", "save_index", "save_shards"]

INDEX = "model.safetensors.index.json"


def save_index(folder: Path, weight_map: object, name: str = INDEX) -> Path:
    """An index that says this; the shards may be others, or none."""
    (folder / name).write_text(json.dumps({"metadata": {"total_size": 1.5}, "weight_map": weight_map}))
    return folder / name


def save_shards(folder: Path, *shards: Mapping[str, torch.Tensor], stem: str = "model") -> Path:
    """The tensors as files with their index, as transformers names them."""
    from safetensors.torch import save_file

    folder.mkdir(exist_ok=True)
    weight_map = {}
    for number, tensors in enumerate(shards, start=1):
        file = f"{stem}-0000{number}-of-0000{len(shards)}.safetensors"
        save_file(dict(tensors), folder / file)
        weight_map.update(dict.fromkeys(tensors, file))
    return save_index(folder, weight_map, f"{stem}.safetensors.index.json")
