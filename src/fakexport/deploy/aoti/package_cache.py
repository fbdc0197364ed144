"""Packages that were compiled before."""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Mapping
from pathlib import Path

import torch

from fakexport.archive import ArchiveError
from fakexport.archive.container.limits import MIB
from fakexport.archive.container.reader import read_container
from fakexport.files import (
    PrivateFolderError,
    fault_of_owner,
    make_private_folder,
    new_file,
    open_regular,
    private_folder,
)

from ..artifact import DeployError
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
    """The entry of a key in a folder of packages, whose code is run: no other user may have written either.

    Args:
        folder: It is made when something is kept in it.
        key: As `cache_key` gives it.
    Raises:
        DeployError: others can write to the folder; one line, with the repair.
    """

    def __init__(self, folder: Path, key: str) -> None:
        try:
            self._folder = private_folder(folder)
        except PrivateFolderError as error:
            raise DeployError(f"the cache keeps code that is run: {error}") from None
        self._path = self._folder / f"{key}.aoti.pt2"

    def taken(self, folder: Path) -> Path | None:
        """A copy of the entry, if there is one, it is as it was written, and this fakexport would open it.

        It is the copy that is checked: nothing that happens to the entry meanwhile changes what is used.

        Args:
            folder: Where the copy goes; no other user can write there.
        Raises:
            DeployError: there is one that others could have written.
        """
        copy = folder / "cached.pt2"
        try:
            with open_regular(self._path) as entry:
                if (fault := fault_of_owner(entry.status)) is not None:
                    raise DeployError(f"{self._path} {fault}, and its code would be run: delete the file")
                with copy.open("xb") as target:
                    target.writelines(entry.pieces())
            with read_container(copy, trust=True) as package:
                read_metadata(package)
                verify_package(package)
        except (ArchiveError, OSError):
            return None
        return copy

    def keep(self, package: Path) -> str | None:
        """Makes a copy the entry; if that cannot be done, why, as a sentence."""
        try:
            make_private_folder(self._folder)
            with new_file(self._path, mode=0o600) as target, package.open("rb") as source:
                shutil.copyfileobj(source, target, MIB)
        except (OSError, PrivateFolderError) as error:
            return f"not kept in the cache: {error}"
        return None
