"""Packages that were compiled before."""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Mapping
from pathlib import Path

import torch

from fakexport.archive import ArchiveError, ArchiveWriteError
from fakexport.archive.container.limits import MIB
from fakexport.archive.container.new_file import new_file
from fakexport.archive.container.reader import read_container

from ..weights_file import raw_chunks
from .package import read_metadata, verify_package

__all__ = ["PackageCache", "cache_key"]


def cache_key(archive: bytes, values: Mapping[str, torch.Tensor], facts: Mapping[str, object]) -> str:
    """A sha256 of all that the code depends on, in hex.

    Args:
        archive: Of the program without weights.
        values: Weights and constants by name, if they go into the code.
        facts: All else, for JSON.
    """
    digest = hashlib.sha256(json.dumps(facts, sort_keys=True).encode())
    digest.update(hashlib.sha256(archive).digest())
    for name, tensor in sorted(values.items()):
        digest.update(hashlib.sha256(name.encode()).digest())
        content = hashlib.sha256()
        for chunk in raw_chunks(tensor):
            content.update(chunk)
        digest.update(content.digest())
    return digest.hexdigest()


class PackageCache:
    """The entry of a key in a folder of packages.

    Args:
        folder: It is made when something is kept in it.
        key: As `cache_key` gives it.
    """

    def __init__(self, folder: Path, key: str) -> None:
        self._folder = folder
        self._path = folder / f"{key}.aoti.pt2"

    @property
    def package(self) -> Path | None:
        """The entry, if there is one, it is as it was written, and this fakexport would open it."""
        try:
            with read_container(self._path, trust=True) as package:
                read_metadata(package)
                verify_package(package)
        except (ArchiveError, OSError):
            return None
        return self._path

    def keep(self, package: Path) -> str | None:
        """Makes a copy the entry; if that cannot be done, why, as a sentence."""
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            with new_file(self._path) as target, package.open("rb") as source:
                shutil.copyfileobj(source, target, MIB)
        except (ArchiveWriteError, OSError) as error:
            return f"not kept in the cache: {error}"
        return None
