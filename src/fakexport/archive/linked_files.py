"""The files next to an archive that contain its weights: recorded by place and hash, opened strictly."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable
from itertools import groupby
from pathlib import Path

import torch

from fakexport._torch.real_execution import real_execution
from fakexport.container import ArchiveError, Limits
from fakexport.error import InvalidValue
from fakexport.files import open_below
from fakexport.weights import Checkpoint, CheckpointError, Entry, MappedFile, Windows, read_header_of

from .manifest import Location, TensorEntry


def linked_tensors(
    archive: str, entries: Iterable[TensorEntry], *, limits: Limits, check_weights: bool
) -> dict[str, torch.Tensor]:
    """Return the weights that are in files next to an archive, by name, on the CPU, mapped from these files.

    A file is opened only if it is a regular file below the archive's folder, reached without symbolic links,
    and only for reading; it must be a safetensors file with the weight at the recorded place.

    Args:
        limits: Limits for the headers of all files together: `json_bytes`.
        check_weights: Whether to read the weights and compare their sha256. Without it they are not read, and
            a file with the same header but different data goes unnoticed.
    Raises:
        ArchiveError: a file is missing, refused, or has changed since it was linked. Names the file.
    """
    linked = [(e, e.location) for e in entries if e.location is not None and e.location.is_link]
    linked.sort(key=lambda link: (link[1].file, link[1].offset))
    tensors: dict[str, torch.Tensor] = {}
    header_bytes = 0
    for name, group in groupby(linked, key=lambda link: link[1].file):
        file = _LinkedFile(archive, name)
        header_bytes += file.header_bytes
        if header_bytes > limits.json_bytes:
            raise file.error(f"with it, the headers of linked files exceed {limits.json_bytes} bytes")
        for entry, location in group:
            tensors[entry.name] = file.tensor(entry, location)
            if check_weights:
                file.check(entry, location)
    return tensors


class _LinkedFile:
    """One file; only its header is read before `check`."""

    def __init__(self, archive: str, name: str) -> None:
        self._archive = archive
        self._name = name
        try:
            # One descriptor: what is hashed is what is loaded, whatever stands at the path by then.
            self._file = open_below(Path(archive).resolve().parent, name)
            self.header_bytes = int.from_bytes(self._file.read_at(0, 8), "little")
            self._entries = read_header_of(self._file).entries
        except CheckpointError as error:
            raise self.error(str(error)) from error
        except OSError as error:
            raise self.error(f"the weights are linked to it: {error.strerror or error}") from error
        self._memory = MappedFile(self._file)

    def error(self, what: str) -> ArchiveError:
        return ArchiveError(self._archive, what, self._name)

    def tensor(self, entry: TensorEntry, location: Location) -> torch.Tensor:
        """Return a weight mapped from the file: no byte is read before it is used."""
        dtype = getattr(torch, entry.dtype)
        if not self._has(entry, location, dtype) or location.offset % dtype.itemsize:
            raise self.error(f"does not have `{entry.name}` where it was linked: it is a different file")
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
        """Read a weight in small steps, and refuse it if a single bit has changed since it was linked."""
        digest = hashlib.sha256()
        try:
            for piece in self._file.pieces(location.offset, location.length):
                digest.update(piece)
        except OSError as error:
            raise self.error(f"`{entry.name}` cannot be read: {error.strerror or error}") from error
        if digest.hexdigest() != location.sha256:
            raise self.error(
                f"has different data for `{entry.name}` than when it was linked: its sha256 differs"
            )


class Links:
    """Finds the places of tensors in the files of a checkpoint, relative to the folder of an archive.

    Args:
        checkpoint: The checkpoint that the weights were bound from: the same object.
        archive: Where the archive will be.
    """

    def __init__(self, checkpoint: Checkpoint, archive: str | os.PathLike[str]) -> None:
        self._windows = Windows(checkpoint)
        self._archive = Path(archive)
        self._names: dict[Path, str] = {}

    def find(
        self, tensor: torch.Tensor, nbytes: int, pieces: Iterable[bytes | memoryview]
    ) -> tuple[str, Location] | None:
        """Return a tensor's name in the checkpoint and its place; None if it is not in a file.

        Args:
            pieces: These bytes as they are in memory, to be hashed: `load` detects a modified tensor.
        Raises:
            ValueError: the file is not below the folder of the archive.
            OSError: the file cannot be read, or no longer exists.
        """
        window = self._windows.of(tensor, nbytes)
        if window is None:
            return None
        if window.path not in self._names:
            self._names[window.path] = self._relative(window.path)
        digest = hashlib.sha256()
        for piece in pieces:
            digest.update(piece)
        return window.entry, Location(
            self._names[window.path], window.offset, nbytes, sha256=digest.hexdigest()
        )

    def _relative(self, path: Path) -> str:
        """Return the name of the file with symbolic links resolved: a reader follows none."""
        folder, file = self._archive.parent.resolve(), path.resolve()
        if not file.is_relative_to(folder):
            raise InvalidValue(
                f"{file} is not below the folder of {self._archive}, and links must stay below it: "
                "write the archive next to the checkpoint or above it, or copy the weights into it"
            )
        return file.relative_to(folder).as_posix()
