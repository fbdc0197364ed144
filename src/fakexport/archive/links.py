"""Weights that stay in the files of a checkpoint: their places as an archive records them."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable
from pathlib import Path

import torch

from fakexport.error import InvalidValue
from fakexport.weights import Checkpoint, Windows

from .manifest import Location


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
