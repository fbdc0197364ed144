"""Which files of a repository hold its weights: the same choice as in a local folder."""

from __future__ import annotations

from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path

from fakexport.hub.faults import HubError
from fakexport.hub.repository import MOST_INDEX_BYTES, Repository

SINGLE_FILE = "model.safetensors"
_INDEX = f"{SINGLE_FILE}.index.json"
_OTHER_NAMES = ("*.safetensors.index.json", "*.safetensors")
_PICKLED = ("*.bin", "*.pt", "*.pth", "*.bin.index.json", "*.gguf", "*.h5", "*.msgpack")
_MOST_NAMES = 3


@dataclass(frozen=True)
class WeightFiles:
    """Where the weights are: in the shards of an index, or in one file.

    Args:
        index: The index, in the cache; None for a single file.
        file: Name of the single file, or of the index.
    """

    index: Path | None
    file: str


def weight_files(repository: Repository) -> WeightFiles:
    """Return the safetensors index of a repository, or its only safetensors file.

    Raises:
        HubError: it has none, or several without an index; it cannot be reached.
    """
    from huggingface_hub import constants

    if constants.is_offline_mode():
        index = repository.in_cache(_INDEX)
        if index is None and repository.in_cache(SINGLE_FILE) is not None:
            return WeightFiles(None, SINGLE_FILE)
    index = repository.file(_INDEX, most_bytes=MOST_INDEX_BYTES)
    if index is not None:
        return WeightFiles(index, _INDEX)
    names = repository.names()
    if SINGLE_FILE in names:
        return WeightFiles(None, SINGLE_FILE)
    return _other(repository, names)


def _other(repository: Repository, names: list[str]) -> WeightFiles:
    for pattern in _OTHER_NAMES:
        found = [name for name in names if fnmatchcase(name, pattern)]
        if len(found) > 1:
            raise HubError(
                f"{repository.name} has {len(found)} files without an index ({_listed(found)}): download the "
                "one that you need, and pass it"
            )
        if found:
            is_index = found[0].endswith(".json")
            index = repository.file(found[0], most_bytes=MOST_INDEX_BYTES) if is_index else None
            return WeightFiles(index, found[0])
    pickled = [name for name in names if any(fnmatchcase(name, pattern) for pattern in _PICKLED)]
    if not pickled:
        raise HubError(f"{repository.name} has no safetensors files")
    raise HubError(
        f"{repository.name} has no safetensors files, and {_listed(pickled)} has no header that can be read "
        "without the weights: download the files, and pass the folder"
    )


def _listed(names: list[str]) -> str:
    return ", ".join(names[:_MOST_NAMES]) + (", ..." if len(names) > _MOST_NAMES else "")
