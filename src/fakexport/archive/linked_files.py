"""Read weights in files next to an archive, which records the location and hash of each weight."""

from __future__ import annotations

import os
from collections.abc import Iterable
from itertools import groupby
from pathlib import Path

import torch

from fakexport._torch.operators.real_execution import real_execution
from fakexport.archive.weights import Checkpoint, CheckpointError, Entry, MappedFile, Windows, read_header_of
from fakexport.error import InvalidValue
from fakexport.files import open_below
from fakexport.files.container import ArchiveError, Limits

from .manifest import Location, TensorEntry
from .shared_records import sha256_of


def linked_tensors(
    archive: str, entries: Iterable[TensorEntry], *, limits: Limits, check_weights: bool
) -> dict[str, torch.Tensor]:
    """Return the linked weights by name, as CPU tensors that are memory-mapped from files next to an archive.

    A file is opened only if it is a regular file below the archive's folder, and no part of its path is a
    symbolic link. It must be a safetensors file with the weight at the recorded location. It is never written
    to. `limits.json_bytes` limits the total size of the headers of all files. Without `check_weights`,
    changed data is not detected if the header is the same.
    """
    linked = [(e, e.location) for e in entries if e.location is not None and e.location.is_link]
    linked.sort(key=lambda link: (link[1].file, link[1].offset))
    tensors: dict[str, torch.Tensor] = {}
    header_bytes = 0
    for name, group in groupby(linked, key=lambda link: link[1].file):
        file = _LinkedFile(archive, name)
        header_bytes += file.header_bytes
        if header_bytes > limits.json_bytes:
            raise file.error(
                f"the headers of the linked files, including this one, exceed {limits.json_bytes} bytes"
            )
        for entry, location in group:
            tensors[entry.name] = file.tensor(entry, location)
            if check_weights:
                file.check(entry, location)
    return tensors


class _LinkedFile:
    """One linked file. Only its header is read until `check` is called."""

    def __init__(self, archive: str, name: str) -> None:
        self._archive = archive
        self._name = name
        try:
            # Read everything from one descriptor, so that the hashed file is the loaded file.
            self._file = open_below(Path(archive).resolve().parent, name)
            self.header_bytes = int.from_bytes(self._file.read_at(0, 8), "little")
            self._entries = read_header_of(self._file).entries
        except CheckpointError as error:
            raise self.error(str(error)) from error
        except OSError as error:
            raise self.error(
                f"this file with linked weights cannot be read: {error.strerror or error}"
            ) from error
        self._memory = MappedFile(self._file)

    def error(self, what: str) -> ArchiveError:
        return ArchiveError(self._archive, what, self._name)

    def tensor(self, entry: TensorEntry, location: Location) -> torch.Tensor:
        """Return a weight as a view of the memory-mapped file, without reading it."""
        dtype = getattr(torch, entry.dtype)
        if not self._has(entry, location, dtype) or location.offset % dtype.itemsize:
            raise self.error(f"does not have `{entry.name}` at the recorded offset: not the linked file")
        elements = location.length // dtype.itemsize
        window = Entry((elements,), dtype, self._name, location.offset, elements * dtype.itemsize)
        try:
            with real_execution():
                flat = self._memory.tensor(entry.name, window)
                return flat.as_strided(entry.shape, entry.stride, entry.storage_offset)
        except CheckpointError as error:
            raise self.error(str(error)) from error

    def _has(self, entry: TensorEntry, location: Location, dtype: torch.dtype) -> bool:
        held = self._entries.get(entry.source or "")
        if held is None or held.offset is None or held.dtype != dtype:
            return False
        begin = location.offset - held.offset
        return begin >= 0 and begin + location.length <= held.nbytes

    def check(self, entry: TensorEntry, location: Location) -> None:
        """Read a weight in small pieces, and raise if its hash differs from the recorded one."""
        try:
            found = sha256_of(self._file.pieces(location.offset, location.length))
        except OSError as error:
            raise self.error(f"`{entry.name}` cannot be read: {error.strerror or error}") from error
        if found != location.sha256:
            raise self.error(
                f"has different data for `{entry.name}` than when it was linked: its sha256 differs"
            )


class Links:
    """Find the files and positions at which a checkpoint stores tensors, relative to the archive to write.

    `checkpoint` must be the same object that the weights were bound from.
    """

    def __init__(self, checkpoint: Checkpoint, archive: str | os.PathLike[str]) -> None:
        self.location = checkpoint.location
        self._windows = Windows(checkpoint)
        self._archive = Path(archive)
        self._names: dict[Path, str] = {}

    def find(
        self, tensor: torch.Tensor, nbytes: int, pieces: Iterable[bytes | memoryview]
    ) -> tuple[str, Location] | None:
        """Return a tensor's name in the checkpoint and its location, or None if it is not in a file.

        `pieces` are the bytes of the tensor. Their hash is recorded, so that `load` can detect changed data.
        """
        window = self._windows.of(tensor, nbytes)
        if window is None:
            return None
        if window.path not in self._names:
            self._names[window.path] = self._relative(window.path)
        file = self._names[window.path]
        return window.entry, Location(file, window.offset, nbytes, sha256=sha256_of(pieces))

    def _relative(self, path: Path) -> str:
        """Return a file's relative path with symbolic links resolved, because `load` rejects such links."""
        folder, file = self._archive.parent.resolve(), path.resolve()
        if not file.is_relative_to(folder):
            raise InvalidValue(
                f"linked weights must be in or below the folder of {self._archive}, but {file} is not: write "
                "the archive next to the checkpoint or above it, or copy the weights into the archive"
            )
        return file.relative_to(folder).as_posix()
