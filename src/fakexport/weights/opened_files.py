"""The parts of a checkpoint, while its files are read one after the other."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

import torch

from fakexport.files import open_regular
from fakexport.weights.checkpoint import CheckpointError, Entry
from fakexport.weights.mapped_file import MappedFile
from fakexport.weights.safetensors_header import Readable, read_header_of
from fakexport.weights.torch_file import entries_of, load_torch_file, shared_names

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
        """Add the tensors of a safetensors file on the hub, of which only the header is here."""
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
        self.shared += shared_names(tensors)
        return list(tensors)

    def _take(self, path: Path, entries: Mapping[str, Entry], read: Callable[[str], torch.Tensor]) -> None:
        if twice := self.entries.keys() & entries.keys():
            name = min(twice)
            raise CheckpointError(f"{name!r} is in {self.entries[name].file} and in {path.name}")
        self.entries.update(entries)
        self._readers.update(dict.fromkeys(entries, read))
