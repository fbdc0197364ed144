"""Open a checkpoint in any supported form."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

import torch

from fakexport._torch.wrapper_subclasses import flat_tensors
from fakexport.documents import DocumentError, mapping, parse_json
from fakexport.files import open_regular, read_file
from fakexport.hub import HubError, HubName, Repository, weight_files
from fakexport.weights.adapters import adapter_of, with_adapters
from fakexport.weights.checkpoint import Checkpoint, CheckpointError, Entry
from fakexport.weights.expectation import tied_names
from fakexport.weights.mapped_file import MappedFile
from fakexport.weights.safetensors_header import Readable, read_header_of
from fakexport.weights.torch_file import entries_of, load_torch_file
from fakexport.weights.weights_warning import warn_of_index

_TORCH = (".pt", ".pth", ".bin", ".ckpt")
# In a folder: the first form of which there is exactly one file is taken. transformers'
# `_get_resolved_checkpoint_files` also looks for a file before it looks for its index.
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


def open_checkpoint(
    checkpoint: str | Path | Mapping[str, torch.Tensor] | Checkpoint,
    *,
    adapter: str | Path | Sequence[str | Path] = (),
) -> Checkpoint:
    """Return the tensors of a checkpoint by name; of safetensors files only the headers are read.

    Args:
        checkpoint: A `.safetensors` file; a folder with such a file, or with shards and their index; a
            file that `torch.save` wrote (`.pt`, `.pth`, `.bin`), or a folder with one or with shards of
            that kind; an index file; tensors by name, real or fake, such as a
            state dict (a tensor subclass stands for the tensors inside of it); a checkpoint that is open
            already; or `hf:org/name[@revision]`, a repository of the Hugging Face hub.
        adapter: The folder of a LoRA adapter of peft for this base model; `NAME=FOLDER` for each of several;
            or `merged`, to say that an adapter is merged into the checkpoint already.
    Returns:
        The checkpoint. Tensors of files are mapped, those of a mapping are kept as they are. Those of a
        repository cannot be read, except where the files are in the cache of `huggingface_hub`.
    Raises:
        CheckpointError: the checkpoint is missing or refused; one line.
        SourceError: a folder has no LoRA adapter; one line.
    Warns:
        WeightsWarning: a folder has `model.safetensors` and an index, which is not read.

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
                f"a checkpoint maps names to tensors; {name!r} is a {type(tensor).__name__}"
            )
    kept = flat_tensors(tensors)
    entries = MappingProxyType(entries_of(kept, None))
    return Checkpoint("a mapping", entries, kept.__getitem__, shared=tied_names(kept))


def with_values(checkpoint: Checkpoint, values: Mapping[str, torch.Tensor]) -> Checkpoint:
    """Return the checkpoint with these entries in addition to its own, or instead of them.

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


def _of_file(path: Path) -> OpenedFiles:
    opened = OpenedFiles()
    if path.name.endswith(".index.json"):
        _open_shards(path, opened)
    elif path.name.endswith((SAFETENSORS, *_TORCH)):
        opened.add(path)
    else:
        raise CheckpointError(
            f"{path} is not a checkpoint: pass a .safetensors, .pt, .pth or .bin file, an index or a folder"
        )
    return opened


def _open_shards(index: Path, opened: OpenedFiles) -> None:
    """Open the shards; each must contain exactly what the index lists for it."""
    suffixes = (SAFETENSORS,) if SAFETENSORS in index.name else _TORCH
    for shard, names in read_index(index, suffixes=suffixes).items():
        check_shard(index, shard, listed=names, held=opened.add(index.parent / shard))


HUB_PREFIX = "hf:"


def open_on_hub(checkpoint: str) -> Checkpoint:
    """Return the tensors of a repository by name; its location is the repository at its commit.

    Files that are in the cache of `huggingface_hub` are opened there. The headers of the others are
    transferred, and no weight: their tensors cannot be read.

    Args:
        checkpoint: `hf:org/name[@revision]`.
    Raises:
        CheckpointError: it cannot be reached, or is refused; one line that says what to do.
    """
    name = HubName.parse(checkpoint.removeprefix(HUB_PREFIX))
    if name is None:
        raise CheckpointError(f"{checkpoint} is not a repository of the hub: write hf:org/name[@revision]")
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
    """Add the files, in order, and return the names of the tensors in each that is there."""
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


SAFETENSORS = ".safetensors"


class OpenedFiles:
    """The entries of the files so far, and how each is read."""

    def __init__(self) -> None:
        self.entries: dict[str, Entry] = {}
        self.metadata: dict[str, str] = {}
        self.shared: tuple[tuple[str, ...], ...] = ()
        self._readers: dict[str, Callable[[str], torch.Tensor]] = {}

    def read(self, name: str) -> torch.Tensor:
        return self._readers[name](name)

    def add(self, path: Path) -> list[str]:
        """Add the tensors of one file and return their names."""
        return self._add_safetensors(path) if path.name.endswith(SAFETENSORS) else self._add_torch(path)

    def add_remote(self, file: Readable, repository: str) -> list[str]:
        """Add the tensors of a safetensors file on the hub. Only its header was downloaded."""
        header = read_header_of(file)

        def read(name: str) -> torch.Tensor:
            raise CheckpointError(
                f"{name!r} is in a repository of the hub, and fakexport never downloads weights: run "
                f"`hf download {repository} --local-dir FOLDER` and pass the folder"
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
            raise CheckpointError(f"{name!r} is in {self.entries[name].file} and in {path.name}")
        self.entries.update(entries)
        self._readers.update(dict.fromkeys(entries, read))


MAX_INDEX_BYTES = 100_000_000


def read_index(path: Path, *, suffixes: tuple[str, ...], is_local: bool = True) -> dict[str, list[str]]:
    """Return the shards of an index, in order of first mention, each with the names it should contain.

    Args:
        path: The index, in the folder of its shards.
        suffixes: How the name of a shard may end. An index is never a shard, whatever it is called.
        is_local: Whether the shards have to be in that folder; those of a repository on the hub are not.
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
            _check_name(path, shard, suffixes)
            if is_local and not (path.parent / shard).is_file():
                raise missing_shard(path, shard)
        shards.setdefault(shard, []).append(name)
    return shards


def check_shard(index: Path, shard: str, *, listed: Collection[str], held: Collection[str]) -> None:
    """Refuse a shard that does not contain exactly what the index lists for it.

    Raises:
        CheckpointError: names the first tensor.
    """
    if absent := set(listed) - set(held):
        raise CheckpointError(
            f"{index.name}: {min(absent)!r} is missing from {shard}, where the index lists it"
        )
    if extra := set(held) - set(listed):
        raise CheckpointError(
            f"{index.name}: {shard} contains {min(extra)!r}, which the index does not list there"
        )


def missing_shard(index: Path, shard: str) -> CheckpointError:
    """Return the error for a shard that is not there."""
    return _refused(index, f"the shard {shard[:80]!r} is missing")


def _check_name(index: Path, shard: Any, suffixes: tuple[str, ...]) -> None:
    if not isinstance(shard, str) or not shard.isprintable() or not shard.endswith(suffixes):
        raise _refused(index, f"{str(shard)[:80]!r} is not a valid shard name ({', '.join(suffixes)})")
    if Path(shard).name != shard or "\\" in shard or ":" in shard or shard.startswith("."):
        raise _refused(index, f"the shard {shard[:80]!r} is not in the folder of the index")


def _refused(path: Path, reason: str) -> CheckpointError:
    return CheckpointError(f"{path.name} is not a valid shard index: {reason}")
