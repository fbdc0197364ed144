"""A checkpoint on the Hugging Face hub, by the headers of its safetensors files."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType

from fakexport.hub import HubError, HubName, Repository, weight_files
from fakexport.weights.checkpoint import Checkpoint, CheckpointError
from fakexport.weights.opened_files import SAFETENSORS, OpenedFiles
from fakexport.weights.shard_index import check_shard, missing_shard, read_index

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
