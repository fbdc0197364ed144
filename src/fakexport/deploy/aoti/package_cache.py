"""A cache of compiled packages."""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Mapping
from pathlib import Path

import torch

from fakexport.container import MIB, ArchiveError, read_container
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


def cache_key(archive: bytes, values: Mapping[str, torch.Tensor], facts: Mapping[str, object]) -> str:
    """Return a sha256 of all that the code depends on, in hex.

    Args:
        archive: Archive of the program without weights.
        values: Weights and constants by name, if they go into the code.
        facts: Everything else, for JSON.
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
    """The entry of a key in a folder of packages, whose code is run: no other user may write to either.

    Args:
        folder: Created when something is stored in it.
        key: As returned by `cache_key`.
    Raises:
        DeployError: others can write to the folder; one line, with the fix.
    """

    def __init__(self, folder: Path, key: str) -> None:
        try:
            self._folder = private_folder(folder)
        except PrivateFolderError as error:
            raise DeployError(f"the cache contains code that is executed: {error}") from None
        self._path = self._folder / f"{key}.aoti.pt2"

    def taken(self, folder: Path) -> Path | None:
        """Return a copy of the entry, if it exists, is undamaged, and this fakexport can open it.

        The copy is what is checked: changes to the entry in the meantime have no effect.

        Args:
            folder: Where the copy goes; no other user can write there.
        Raises:
            DeployError: there is an entry that other users could have written.
        """
        copy = folder / "cached.pt2"
        try:
            with open_regular(self._path) as entry:
                if (fault := fault_of_owner(entry.status)) is not None:
                    raise DeployError(
                        f"{self._path} {fault}, and its code would be executed: delete the file"
                    )
                with copy.open("xb") as target:
                    target.writelines(entry.pieces())
            with read_container(copy, trust=True) as package:
                read_metadata(package)
                verify_package(package)
        except (ArchiveError, OSError):
            return None
        return copy

    def keep(self, package: Path) -> str | None:
        """Store a copy as the entry; return why, as a sentence, if that fails."""
        try:
            make_private_folder(self._folder)
            with (
                new_file(self._path, mode=0o600, replaces_input=True) as target,
                package.open("rb") as source,
            ):
                shutil.copyfileobj(source, target, MIB)
        except (OSError, PrivateFolderError) as error:
            return f"not kept in the cache: {error}"
        return None
