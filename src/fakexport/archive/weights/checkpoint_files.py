"""Find the files of a checkpoint, and read indexes of shards. Does not import torch."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path
from typing import Any

from fakexport.error import FakexportError
from fakexport.files import read_file
from fakexport.files.documents import DocumentError, mapping, parse_json

SAFETENSORS = ".safetensors"
TORCH = (".pt", ".pth", ".bin", ".ckpt")
# In a folder, the first of these forms that matches any file is used. transformers'
# `_get_resolved_checkpoint_files` also looks for a single file before an index.
_IN_A_FOLDER = (
    ("model.safetensors",),
    ("model.safetensors.index.json",),
    ("*.safetensors.index.json",),
    ("*.safetensors",),
    ("pytorch_model.bin",),
    ("pytorch_model.bin.index.json",),
    ("*.bin.index.json",),
    ("*.bin", "*.pt", "*.pth"),
)


class CheckpointError(FakexportError, ValueError):
    """A checkpoint cannot be read, or it is rejected. The one-line message names the file and the reason."""


def first_file(checkpoint: Path) -> Path:
    """Return the file to read first: a folder's index or its only weights file. A file is returned as is."""
    return _file_in(checkpoint) if checkpoint.is_dir() else checkpoint


def _file_in(folder: Path) -> Path:
    for patterns in _IN_A_FOLDER:
        found = sorted({path for pattern in patterns for path in folder.glob(pattern) if path.is_file()})
        if len(found) == 1:
            return found[0]
        if len(found) > 1:
            names = ", ".join(path.name for path in found[:3])
            raise CheckpointError(
                f"{folder} has {len(found)} files without an index: pass one of them: {names}, ..."
            )
    raise CheckpointError(f"{folder} has no .safetensors file, no index and no .bin or .pt file")


MAX_INDEX_BYTES = 100_000_000


def read_index(path: Path, *, suffixes: tuple[str, ...], is_local: bool = True) -> dict[str, list[str]]:
    """Return the shards of an index, each with its tensor names, in order of first mention.

    An index is never a shard, since its name has none of the `suffixes`. The shards must be in the folder of
    the index, unless `is_local` is False (for a repository on the hub).
    """
    text = read_file(path, most_bytes=MAX_INDEX_BYTES)
    try:
        fields = mapping(parse_json(text))
    except DocumentError as error:
        raise _refused(path, str(error)) from error
    names = fields.get("weight_map")
    if not isinstance(names, dict) or not names:
        raise _refused(path, "it has no weight_map")
    shards: dict[str, list[str]] = {}
    for name, shard in names.items():
        if not isinstance(shard, str) or shard not in shards:
            _check_name(path, shard, suffixes)
            if is_local and not (path.parent / shard).is_file():
                raise missing_shard(path, shard)
        shards.setdefault(shard, []).append(name)
    return shards


def check_shard(index: Path, shard: str, *, listed: Collection[str], held: Collection[str]) -> None:
    """Raise unless a shard contains exactly the tensors that the index lists for it."""
    if absent := set(listed) - set(held):
        raise CheckpointError(
            f"{index.name}: {min(absent)!r} is missing from {shard}, where the index lists it"
        )
    if extra := set(held) - set(listed):
        raise CheckpointError(
            f"{index.name}: {shard} contains {min(extra)!r}, which the index does not list there"
        )


def missing_shard(index: Path, shard: str) -> CheckpointError:
    return _refused(index, f"the shard {shard[:80]!r} is missing")


def _check_name(index: Path, shard: Any, suffixes: tuple[str, ...]) -> None:
    if not isinstance(shard, str) or not shard.isprintable() or not shard.endswith(suffixes):
        raise _refused(index, f"{str(shard)[:80]!r} is not a valid shard name ({', '.join(suffixes)})")
    if Path(shard).name != shard or "\\" in shard or ":" in shard or shard.startswith("."):
        raise _refused(index, f"the shard {shard[:80]!r} is not in the folder of the index")


def _refused(path: Path, reason: str) -> CheckpointError:
    return CheckpointError(f"{path.name} is not a valid shard index: {reason}")
