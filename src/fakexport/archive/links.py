"""Weights that stay in the files of a checkpoint: where an archive says they are."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable
from pathlib import Path

import torch

from fakexport.error import InvalidValue
from fakexport.weights import Checkpoint, Windows

from .manifest import Location

__all__ = ["Links"]


class Links:
    """Gives the places of tensors in the files of a checkpoint, relative to the folder of an archive.

    Args:
        checkpoint: The one that the weights were bound from: the same object.
        archive: Where the archive will be.
    """

    def __init__(self, checkpoint: Checkpoint, archive: str | os.PathLike[str]) -> None:
        self._windows = Windows(checkpoint)
        self._archive = Path(archive)
        self._names: dict[Path, str] = {}

    def find(
        self, tensor: torch.Tensor, nbytes: int, pieces: Iterable[bytes | memoryview]
    ) -> tuple[str, Location] | None:
        """The checkpoint's name of a tensor and its place; None where it lies in no file.

        Args:
            tensor: Real.
            nbytes: From its first to its last element.
            pieces: These bytes. They are hashed as they are in memory: should somebody have written into the
                tensor, then `load` finds that the file is another.
        Raises:
            ValueError: the file is not below the folder of the archive.
            OSError: the file cannot be read, or is no longer there.
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
        """The name of the file itself, behind all symbolic links: whoever loads the archive follows none."""
        folder, file = self._archive.parent.resolve(), path.resolve()
        if not file.is_relative_to(folder):
            raise InvalidValue(
                f"{file} is not below the folder of {self._archive}, and a link leads only there: write the "
                "archive beside the checkpoint or above it, or copy the weights into it"
            )
        return file.relative_to(folder).as_posix()
