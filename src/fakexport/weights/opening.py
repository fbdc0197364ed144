"""Open a checkpoint in any supported form."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

import torch

from fakexport._torch.wrapper_subclasses import flat_tensors
from fakexport.documents import DocumentError, mapping, parse_json
from fakexport.files import open_regular, read_file
from fakexport.weights.checkpoint import Checkpoint, CheckpointError, Entry
from fakexport.weights.mapped_file import MappedFile
from fakexport.weights.safetensors_header import read_header_of
from fakexport.weights.torch_file import entries_of, load_torch_file, shared_names

_SAFETENSORS = ".safetensors"
_TORCH = (".pt", ".pth", ".bin", ".ckpt")
# In a folder: the first form of which there is exactly one file is taken.
_IN_A_FOLDER = (
    ("model.safetensors.index.json",),
    ("model.safetensors",),
    ("*.safetensors.index.json",),
    ("*.safetensors",),
    ("pytorch_model.bin.index.json",),
    ("pytorch_model.bin",),
    ("*.bin.index.json",),
    ("*.bin", "*.pt", "*.pth"),
)

MAX_INDEX_BYTES = 100_000_000


def open_checkpoint(checkpoint: str | Path | Mapping[str, torch.Tensor] | Checkpoint) -> Checkpoint:
    """Return the tensors of a checkpoint by name; of safetensors files only the headers are read.

    Args:
        checkpoint: A `.safetensors` file; a folder with such a file, or with shards and their index; a
            file that `torch.save` wrote (`.pt`, `.pth`, `.bin`), or a folder with one or with shards of
            that kind; an index file; tensors by name, real or fake, such as a
            state dict (a tensor subclass stands for the tensors inside of it); a checkpoint that is open
            already.
    Returns:
        The checkpoint. Tensors of files are mapped, those of a mapping are kept as they are.
    Raises:
        CheckpointError: the checkpoint is missing or refused; one line.

    Example:
        >>> open_checkpoint({"weight": torch.zeros(4, 2)}).entries["weight"].shape
        (4, 2)
    """
    if isinstance(checkpoint, Checkpoint):
        return checkpoint
    if isinstance(checkpoint, Mapping):
        return _in_memory(checkpoint)
    path = Path(checkpoint)
    try:
        found = first_file(path)
        opened = _of_file(found)
    except OSError as error:
        raise CheckpointError(f"{error.filename or path}: {error.strerror or error}") from error
    return Checkpoint(
        location=str(checkpoint),
        entries=MappingProxyType(opened.entries),
        read=opened.read,
        metadata=MappingProxyType(opened.metadata),
        shared=opened.shared,
        folder=found.parent,
    )


def _in_memory(tensors: Mapping[str, torch.Tensor]) -> Checkpoint:
    for name, tensor in tensors.items():
        if not isinstance(name, str) or not isinstance(tensor, torch.Tensor):
            raise CheckpointError(
                f"a checkpoint maps names to tensors; {name!r} is a {type(tensor).__name__}"
            )
    kept = flat_tensors(tensors)
    entries = MappingProxyType(entries_of(kept, None))
    return Checkpoint("a mapping", entries, kept.__getitem__, shared=shared_names(kept))


def with_values(checkpoint: Checkpoint, values: Mapping[str, torch.Tensor]) -> Checkpoint:
    """Return the checkpoint with these entries in addition to its own, or in place of them.

    Args:
        checkpoint: Not changed.
        values: By name; of a wrapper subclass the tensors inside of it.
    """
    own = flat_tensors(values)

    def read(name: str) -> torch.Tensor:
        return own[name] if name in own else checkpoint.read(name)

    entries = MappingProxyType({**checkpoint.entries, **entries_of(own, None)})
    return replace(checkpoint, entries=entries, read=read)


def first_file(checkpoint: Path) -> Path:
    """Return the file to read first: the index or only file of a folder, otherwise the path itself.

    Raises:
        CheckpointError: the folder has no such file, or several.
    """
    return _file_in(checkpoint) if checkpoint.is_dir() else checkpoint


def _file_in(folder: Path) -> Path:
    for patterns in _IN_A_FOLDER:
        found = sorted({path for pattern in patterns for path in folder.glob(pattern) if path.is_file()})
        if len(found) == 1:
            return found[0]
        if len(found) > 1:
            names = ", ".join(path.name for path in found[:3])
            raise CheckpointError(
                f"{folder} has {len(found)} files without an index, pass one of them: {names}, ..."
            )
    raise CheckpointError(f"{folder} has no .safetensors file, no index and no .bin or .pt file")


class _Opened:
    """The parts of a checkpoint, while its files are read one after the other."""

    def __init__(self) -> None:
        self.entries: dict[str, Entry] = {}
        self.metadata: dict[str, str] = {}
        self.shared: tuple[tuple[str, ...], ...] = ()
        self._readers: dict[str, Callable[[str], torch.Tensor]] = {}

    def read(self, name: str) -> torch.Tensor:
        return self._readers[name](name)

    def add(self, path: Path) -> list[str]:
        """Add the tensors of one file and return their names."""
        return self._add_safetensors(path) if path.name.endswith(_SAFETENSORS) else self._add_torch(path)

    def _add_safetensors(self, path: Path) -> list[str]:
        file = open_regular(path)
        header, mapped = read_header_of(file), MappedFile(file)
        self._take(path, header.entries, lambda name: mapped.tensor(name, header.entries[name]))
        self.metadata.update(header.metadata)
        return list(header.entries)

    def _add_torch(self, path: Path) -> list[str]:
        tensors = load_torch_file(path)
        self._take(path, entries_of(tensors, path.name), tensors.__getitem__)
        self.shared += shared_names(tensors)
        return list(tensors)

    def _take(self, path: Path, entries: Mapping[str, Entry], read: Callable[[str], torch.Tensor]) -> None:
        if twice := self.entries.keys() & entries.keys():
            name = min(twice)
            raise CheckpointError(f"{name!r} is in {self.entries[name].file} and in {path.name}")
        self.entries.update(entries)
        self._readers.update(dict.fromkeys(entries, read))


def _of_file(path: Path) -> _Opened:
    opened = _Opened()
    if path.name.endswith(".index.json"):
        _open_shards(path, opened)
    elif path.name.endswith((_SAFETENSORS, *_TORCH)):
        opened.add(path)
    else:
        raise CheckpointError(
            f"{path} is not a checkpoint: pass a .safetensors, .pt, .pth or .bin file, an index or a folder"
        )
    return opened


def _open_shards(index: Path, opened: _Opened) -> None:
    """Open the shards; each must contain exactly what the index lists for it."""
    suffixes = (_SAFETENSORS,) if _SAFETENSORS in index.name else _TORCH
    for shard, names in read_index(index, suffixes=suffixes).items():
        held, said = set(opened.add(index.parent / shard)), set(names)
        if absent := said - held:
            raise CheckpointError(
                f"{index.name}: {min(absent)!r} is missing from {shard}, where the index lists it"
            )
        if extra := held - said:
            raise CheckpointError(
                f"{index.name}: {shard} contains {min(extra)!r}, which the index does not list there"
            )


def read_index(path: Path, *, suffixes: tuple[str, ...]) -> dict[str, list[str]]:
    """Return the shards of an index, in order of first mention, each with the names it should contain.

    Args:
        path: The index, in the folder of its shards.
        suffixes: How the name of a shard may end. An index is never a shard, whatever it is called.
    Raises:
        CheckpointError: the index is refused, or a shard is missing; one line.
        OSError: the index cannot be opened.
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
            _check_shard(path, shard, suffixes)
        shards.setdefault(shard, []).append(name)
    return shards


def _check_shard(index: Path, shard: Any, suffixes: tuple[str, ...]) -> None:
    if not isinstance(shard, str) or not shard.isprintable() or not shard.endswith(suffixes):
        raise _refused(index, f"{str(shard)[:80]!r} is not a valid shard name ({', '.join(suffixes)})")
    if Path(shard).name != shard or "\\" in shard or ":" in shard or shard.startswith("."):
        raise _refused(index, f"the shard {shard[:80]!r} is not in the folder of the index")
    if not (index.parent / shard).is_file():
        raise _refused(index, f"the shard {shard[:80]!r} is missing")


def _refused(path: Path, reason: str) -> CheckpointError:
    return CheckpointError(f"{path.name} is not a valid shard index: {reason}")
