"""The file of a compiled program: torch's package with fakexport's metadata."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from types import MappingProxyType

from fakexport.container import ArchiveError, Container, Content, Digest, FileSlice, write_container
from fakexport.documents import DocumentError, entries, text

from .metadata import KEY, PackageMetadata

PROGRAM = "data/fakexport/program.pt2"
"""The record of the weight-less archive, where weights are bound later."""

CONSTANTS = "data/fakexport/constants.safetensors"
"""The record of the constants whose values are known, where weights are bound later."""

_DIGESTS = "data/fakexport/sha256.json"
_FOLDER = "data/aotinductor/model/"
_METADATA = "_metadata.json"
# torch's loader looks for the states of C++ objects beside the constants.
_OBJECT, _OBJECTS_FOLDER = "custom_obj_", "data/constants/"


def write_package(
    path: Path,
    files: Iterable[Path],
    metadata: PackageMetadata | None = None,
    more: Mapping[str, bytes] = MappingProxyType({}),
) -> None:
    """Write a package atomically.

    Raises:
        FileWriteError: it cannot be written; the previous one is kept.
    """
    records: dict[str, Content] = {}
    for file in files:
        content: Content = FileSlice(file, 0, file.stat().st_size)
        if metadata is not None and file.name.endswith(_METADATA):
            content = json.dumps({**json.loads(file.read_bytes()), KEY: metadata.to_text()}).encode()
        folder = _OBJECTS_FOLDER if file.name.startswith(_OBJECT) else _FOLDER
        records[folder + file.name] = content
    records.update(more)
    write_container(path, records, last=(_DIGESTS, _digests))


def _digests(written: tuple[Digest, ...]) -> bytes:
    return json.dumps({digest.name: digest.sha256 for digest in written}, indent=1).encode()


def read_metadata(package: Container) -> PackageMetadata:
    """Return the metadata of the package.

    Raises:
        ArchiveError: it is damaged, or was not written by fakexport.
    """
    names = [name for name in package.names if name.startswith(_FOLDER) and name.endswith(_METADATA)]
    if not names:
        raise ArchiveError(package.path, "is not an AOTInductor package")
    found = package.json(names[0])
    if not isinstance(found, dict) or not isinstance(found.get(KEY), str):
        raise ArchiveError(
            package.path,
            "was not compiled by fakexport, so its inputs and weights are unknown; "
            "`torch._inductor.aoti_load_package` opens it",
        )
    try:
        return PackageMetadata.from_text(found[KEY])
    except DocumentError as error:
        raise ArchiveError(package.path, str(error), names[0]) from error


def verify_package(package: Container) -> str:
    """Read all records, compare them with their recorded hashes, and return a digest of them all.

    Raises:
        ArchiveError: a record is damaged, missing or added.
    """
    try:
        expected: Mapping[str, str] = entries(package.json(_DIGESTS), text)
    except DocumentError as error:
        raise ArchiveError(package.path, str(error), _DIGESTS) from error
    if unlike := sorted(expected.keys() ^ (set(package.names) - {_DIGESTS})):
        raise ArchiveError(package.path, "is missing, or was added after the package was written", unlike[0])
    for name, digest in expected.items():
        if package.verify(name) != digest:
            raise ArchiveError(package.path, "is damaged: its sha256 differs from the recorded one", name)
    return hashlib.sha256(package.record(_DIGESTS)).hexdigest()
