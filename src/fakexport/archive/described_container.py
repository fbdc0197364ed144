"""Containers with a manifest: written with one, and checked against it when they are read."""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping
from dataclasses import replace

from fakexport.archive.manifest import Manifest
from fakexport.archive.manifest_json import decode_manifest, encode_manifest
from fakexport.container import ArchiveError, Container, Content, Digest, write_container
from fakexport.documents import DocumentError

MANIFEST = "extra/fakexport/manifest.json"
"The manifest's record. torch's loader returns the records below `extra/` as texts, unread."


def write_described(
    path: str | os.PathLike[str], records: Mapping[str, Content], manifest: Manifest
) -> Manifest:
    """Write an archive with its manifest; the hashes are taken while the records are written.

    Args:
        path: See `write_container`, and for what is raised.
    Returns:
        The manifest as written.
    """
    written = manifest

    def last(digests: tuple[Digest, ...]) -> bytes:
        nonlocal written
        written = replace(manifest, records=digests)
        return encode_manifest(written)

    write_container(path, records, folder_name="model", last=(MANIFEST, last))
    return written


def read_manifest(container: Container) -> Manifest:
    """Return the manifest of an archive; from now on every record read is checked against it.

    Raises:
        ArchiveError: No manifest, one that is refused, or one whose records differ from the archive's.
    """
    try:
        manifest = decode_manifest(container.record(MANIFEST), container.limits)
    except DocumentError as fault:
        raise ArchiveError(container.path, str(fault), MANIFEST) from None
    described = {record.name: record for record in manifest.records}
    present = set(container.names) - {MANIFEST}
    if missing := sorted(described.keys() - present):
        raise ArchiveError(container.path, "is missing, but the manifest lists it", missing[0])
    if extra := sorted(present - described.keys()):
        raise ArchiveError(container.path, "is not in the manifest", extra[0])
    for name in sorted(present):
        if container.size(name) != described[name].size:
            what = f"has {container.size(name)} bytes, but {described[name].size} in the manifest"
            raise ArchiveError(container.path, what, name)
    container.expect({name: record.sha256 for name, record in described.items()})
    return manifest


def verify_records(container: Container, manifest: Manifest, *, unread: Collection[str] = ()) -> None:
    """Read every record and refuse the archive if a single bit differs from what was written.

    Raises:
        ArchiveError: The first record that is damaged.
    """
    container.expect({record.name: record.sha256 for record in manifest.records})
    for name in container.names:
        if name not in unread:
            container.verify(name)
