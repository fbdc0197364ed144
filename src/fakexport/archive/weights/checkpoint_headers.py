"""List the tensors of safetensors files by the names of their dtypes. Does not import torch."""

from __future__ import annotations

from pathlib import Path

from fakexport.archive.weights.checkpoint_files import SAFETENSORS, check_shard, first_file, read_index
from fakexport.archive.weights.safetensors_header import StoredEntry, read_entries
from fakexport.files import open_regular


def stored_entries(checkpoint: Path) -> dict[str, StoredEntry] | None:
    """Return the entries of safetensors files; None for other files, and if there is something to warn of."""
    path = first_file(checkpoint)
    is_index = path.name.endswith(f"{SAFETENSORS}.index.json")
    is_warned = checkpoint.is_dir() and path.with_name(f"{path.name}.index.json").is_file()
    if is_warned or not (is_index or path.name.endswith(SAFETENSORS)):
        return None
    if not is_index:
        return _entries_of(path)
    found: dict[str, StoredEntry] = {}
    for shard, names in read_index(path, suffixes=(SAFETENSORS,)).items():
        entries = _entries_of(path.parent / shard)
        check_shard(path, shard, listed=names, held=entries)
        if found.keys() & entries.keys():
            return None
        found |= entries
    return found


def _entries_of(path: Path) -> dict[str, StoredEntry]:
    with open_regular(path) as file:
        return read_entries(file)[0]
