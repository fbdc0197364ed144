"""Open a checkpoint in any supported form."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType

import torch

from fakexport._torch.emulation.wrapper_subclasses import flat_tensors
from fakexport.archive.weights.adapters import adapter_of, with_adapters
from fakexport.archive.weights.checkpoint import Checkpoint, Entry, entries_of, load_torch_file
from fakexport.archive.weights.checkpoint_files import (
    SAFETENSORS,
    TORCH,
    CheckpointError,
    check_shard,
    first_file,
    missing_shard,
    read_index,
)
from fakexport.archive.weights.expectation import tied_names
from fakexport.archive.weights.safetensors_file import MappedFile, read_header_of
from fakexport.archive.weights.safetensors_header import Readable
from fakexport.archive.weights.weights_report import warn_of_index
from fakexport.files import open_regular
from fakexport.models.hub import HubError, HubName, Repository, weight_files


def open_checkpoint(
    checkpoint: str | Path | Mapping[str, torch.Tensor] | Checkpoint,
    *,
    adapter: str | Path | Sequence[str | Path] = (),
) -> Checkpoint:
    """Open a checkpoint and return its tensors by name. Only the headers of safetensors files are read.

    Args:
        checkpoint: A `.safetensors` file, or a file written by `torch.save` (`.pt`, `.pth`, `.bin`); a folder
            with such a file, or with shards and an index; an index file; real or fake tensors by name, such
            as a state dict (tensor subclasses are replaced by their inner tensors); a checkpoint that is
            already open; or `hf:org/name[@revision]`, a repository on the Hugging Face hub.
        adapter: The folder of a peft LoRA adapter for this base model; for several adapters, `NAME=FOLDER`
            each; or `merged` if an adapter is already merged into the checkpoint.

    Returns:
        The checkpoint. Tensors in files are memory-mapped, and tensors of a mapping are used without copying.
        Tensors of a hub repository can only be read if its files are in the cache of `huggingface_hub`.

    Raises:
        CheckpointError: The checkpoint is missing or rejected. The message is a single line.
        SourceError: A folder does not contain a LoRA adapter. The message is a single line.

    Warns:
        WeightsWarning: A folder has both `model.safetensors` and its index; the index is not read.

    Example:
        >>> open_checkpoint({"weight": torch.zeros(4, 2)}).entries["weight"].shape
        (4, 2)
    """
    if adapter:
        asked = [adapter] if isinstance(adapter, str | Path) else adapter
        base = open_checkpoint(checkpoint)
        folders = {str(text): adapter_of(text) for text in asked}
        files = [(text, None if path is None else open_checkpoint(path)) for text, path in folders.items()]
        return with_adapters(base, files)
    if isinstance(checkpoint, Checkpoint):
        return checkpoint
    if isinstance(checkpoint, Mapping):
        return _in_memory(checkpoint)
    if isinstance(checkpoint, str) and checkpoint.startswith(HUB_PREFIX):
        return open_on_hub(checkpoint)
    path = Path(checkpoint)
    try:
        found = first_file(path)
        index = found.with_name(f"{found.name}.index.json")
        if path.is_dir() and index.is_file():
            warn_of_index(found, index)
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
                f"a checkpoint maps names to tensors, but {name!r} is a {type(tensor).__name__}"
            )
    kept = flat_tensors(tensors)
    entries = MappingProxyType(entries_of(kept, None))
    return Checkpoint("a mapping", entries, kept.__getitem__, shared=tied_names(kept))


def with_values(checkpoint: Checkpoint, values: Mapping[str, torch.Tensor]) -> Checkpoint:
    """Return the checkpoint with these tensors added. They replace entries with the same names."""
    own = flat_tensors(values)

    def read(name: str) -> torch.Tensor:
        return own[name] if name in own else checkpoint.read(name)

    entries = MappingProxyType({**checkpoint.entries, **entries_of(own, None)})
    return replace(checkpoint, entries=entries, read=read)


def _of_file(path: Path) -> OpenedFiles:
    opened = OpenedFiles()
    if path.name.endswith(".index.json"):
        _open_shards(path, opened)
    elif path.name.endswith((SAFETENSORS, *TORCH)):
        opened.add(path)
    else:
        raise CheckpointError(
            f"{path} is not a checkpoint: pass a .safetensors, .pt, .pth or .bin file, an index or a folder"
        )
    return opened


def _open_shards(index: Path, opened: OpenedFiles) -> None:
    """Open the shards of an index. Each must contain exactly the tensors that the index lists for it."""
    suffixes = (SAFETENSORS,) if SAFETENSORS in index.name else TORCH
    for shard, names in read_index(index, suffixes=suffixes).items():
        check_shard(index, shard, listed=names, held=opened.add(index.parent / shard))


HUB_PREFIX = "hf:"


def open_on_hub(checkpoint: str) -> Checkpoint:
    """Open `hf:org/name[@revision]` as a checkpoint. Its `location` includes the commit.

    Files in the cache of `huggingface_hub` are opened from there. For other files, only the safetensors
    headers are downloaded, so the data of their tensors cannot be read.
    """
    name = HubName.parse(checkpoint.removeprefix(HUB_PREFIX))
    if name is None:
        raise CheckpointError(
            f"{checkpoint} is not a repository on the Hugging Face hub: write hf:org/name[@revision]"
        )
    try:
        return _of_repository(Repository.open(name))
    except HubError as error:
        raise CheckpointError(str(error)) from error
    except OSError as error:
        raise CheckpointError(f"{error.filename or checkpoint}: {error.strerror or error}") from error


def _of_repository(repository: Repository) -> Checkpoint:
    found, opened = weight_files(repository), OpenedFiles()
    if found.index is None:
        held = _add(repository, [found.file], opened)
        if not held:
            raise CheckpointError(f"{repository.name}: {found.file} is missing")
    else:
        shards = read_index(found.index, suffixes=(SAFETENSORS,), is_local=False)
        held = _add(repository, list(shards), opened)
        for shard, names in shards.items():
            if shard not in held:
                raise missing_shard(found.index, shard)
            check_shard(found.index, shard, listed=names, held=held[shard])
    config = repository.config
    return Checkpoint(
        location=str(repository.pinned),
        entries=MappingProxyType(opened.entries),
        read=opened.read,
        metadata=MappingProxyType(opened.metadata),
        folder=None if config is None else config.parent,
    )


def _add(repository: Repository, files: list[str], opened: OpenedFiles) -> Mapping[str, list[str]]:
    """Add the files that exist to `opened`, in order. Return the tensor names of each file."""
    here: dict[str, Path] = {file: path for file in files if (path := repository.in_cache(file)) is not None}
    elsewhere = [file for file in files if file not in here]
    headers = dict(zip(elsewhere, repository.headers(elsewhere), strict=True))
    held = {}
    for file in files:
        if file in here:
            held[file] = opened.add(here[file])
        elif (header := headers[file]) is not None:
            held[file] = opened.add_remote(header, repository.name.repository)
    return held


class OpenedFiles:
    """The entries of all files that were added, and how to read each entry."""

    def __init__(self) -> None:
        self.entries: dict[str, Entry] = {}
        self.metadata: dict[str, str] = {}
        self.shared: tuple[tuple[str, ...], ...] = ()
        self._readers: dict[str, Callable[[str], torch.Tensor]] = {}

    def read(self, name: str) -> torch.Tensor:
        return self._readers[name](name)

    def add(self, path: Path) -> list[str]:
        """Add the tensors of one file, and return their names."""
        return self._add_safetensors(path) if path.name.endswith(SAFETENSORS) else self._add_torch(path)

    def add_remote(self, file: Readable, repository: str) -> list[str]:
        """Add the tensors of a safetensors file on the hub. Only its header is downloaded."""
        header = read_header_of(file)

        def read(name: str) -> torch.Tensor:
            raise CheckpointError(
                f"{name!r} is on the Hugging Face hub, and fakexport never downloads weights: run `hf "
                f"download {repository} --local-dir FOLDER` and pass the folder"
            )

        self._take(Path(file.path), header.entries, read)
        self.metadata.update(header.metadata)
        return list(header.entries)

    def _add_safetensors(self, path: Path) -> list[str]:
        file = open_regular(path)
        header, mapped = read_header_of(file), MappedFile(file)
        self._take(path, header.entries, lambda name: mapped.tensor(name, header.entries[name]))
        self.metadata.update(header.metadata)
        return list(header.entries)

    def _add_torch(self, path: Path) -> list[str]:
        tensors = load_torch_file(path)
        self._take(path, entries_of(tensors, path.name), tensors.__getitem__)
        self.shared += tied_names(tensors)
        return list(tensors)

    def _take(self, path: Path, entries: Mapping[str, Entry], read: Callable[[str], torch.Tensor]) -> None:
        if twice := self.entries.keys() & entries.keys():
            name = min(twice)
            raise CheckpointError(f"both {self.entries[name].file} and {path.name} contain {name!r}")
        self.entries.update(entries)
        self._readers.update(dict.fromkeys(entries, read))
