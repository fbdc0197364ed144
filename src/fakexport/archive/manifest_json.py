"""Encode a manifest as JSON, decode it from untrusted bytes, and check archives against it."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from functools import cache
from json import dumps, loads  # A model may replace `json.dumps` and `json.loads`.
from typing import Any

from fakexport.archive.manifest import Manifest, MethodManifest
from fakexport.files.container import ArchiveError, Container, Content, Digest, Limits, write_container
from fakexport.files.documents import (
    DocumentError,
    field,
    mapping,
    one_of,
    parse_json,
    reader_of,
    stored_fields,
)

FORMAT = "fakexport.archive/1"


def encode_manifest(manifest: Manifest) -> bytes:
    """Encode a manifest as ASCII JSON. Equal manifests have equal bytes."""
    # The keys of all mappings are sorted, except for the methods, whose order counts.
    value = {"format": FORMAT, **_stored(manifest), "methods": dict(manifest.methods)}
    return dumps(value, default=_stored, separators=(",", ":"), allow_nan=False).encode() + b"\n"


def _stored(value: Any) -> dict[str, Any]:
    sorted_ = {name: dict(sorted(e.items())) for name, e in vars(value).items() if isinstance(e, Mapping)}
    return {name: sorted_.get(name, entry) for name, entry in stored_fields(value).items()}


def method_to_json(manifest: MethodManifest) -> dict[str, Any]:
    """Return the description of one program as JSON values; `method_from_json` decodes it."""
    plain: dict[str, Any] = loads(
        dumps({"format": FORMAT, **_stored(manifest)}, default=_stored, allow_nan=False)
    )
    return plain


def decode_manifest(content: bytes, limits: Limits | None = None) -> Manifest:
    """Decode a manifest from untrusted bytes. The type annotations of its classes define what each field
    accepts.

    Raises:
        DocumentError: It is not JSON, has a different format version, a missing or unknown field, a value out
            of range, or contradictory values. The error names the position of the value.
    """
    limits = limits or Limits()
    value = parse_json(content, most_bytes=limits.json_bytes, most_memory_bytes=limits.json_memory_bytes)
    found: Manifest = _reader(Manifest, limits.entries)(_without_format(value))
    return found


def method_from_json(value: Any) -> MethodManifest:
    """Decode the output of `method_to_json`.

    Raises:
        DocumentError: As for `decode_manifest`.
    """
    found: MethodManifest = _reader(MethodManifest, Limits().entries)(_without_format(value))
    return found


@cache
def _reader(kind: type[Any], most: int) -> Callable[[Any], Any]:
    return reader_of(kind, most=most, may_omit=True)


def _without_format(value: Any) -> dict[str, Any]:
    """Check the format version before any other field, and return the other fields."""
    found = mapping(value).get("format")
    kind = FORMAT.partition("/")[0]
    if isinstance(found, str) and found != FORMAT and found.startswith(f"{kind}/"):
        raise DocumentError(f"version {found[:40]!r}, but this fakexport reads {FORMAT!r}").within("format")
    field(value, "format", one_of((FORMAT,), "fakexport format"))
    return {name: entry for name, entry in value.items() if name != "format"}


MANIFEST = "extra/fakexport/manifest.json"
"""Record of the manifest. torch's loader returns records below `extra/` as text, without parsing them."""


def write_described(
    path: str | os.PathLike[str], records: Mapping[str, Content], manifest: Manifest
) -> Manifest:
    """Write an archive with its manifest, and return the manifest as written.

    The hashes are computed while the records are written. Raises the same errors as `write_container`.
    """
    written = manifest

    def last(digests: tuple[Digest, ...]) -> bytes:
        nonlocal written
        written = replace(manifest, records=digests)
        return encode_manifest(written)

    write_container(path, records, folder_name="model", last=(MANIFEST, last))
    return written


def read_manifest(container: Container) -> Manifest:
    """Return the manifest of an archive. The container then checks every record that it reads."""
    try:
        manifest = decode_manifest(container.record(MANIFEST), container.limits)
    except DocumentError as fault:
        raise ArchiveError(container.path, str(fault), MANIFEST) from None
    described = {record.name: record for record in manifest.records}
    present = set(container.names) - {MANIFEST}
    if missing := sorted(described.keys() - present):
        raise ArchiveError(container.path, "is missing, but the manifest lists it", missing[0])
    if extra := sorted(present - described.keys()):
        raise ArchiveError(container.path, "is not listed in the manifest", extra[0])
    for name in sorted(present):
        if container.size(name) != described[name].size:
            what = f"has {container.size(name)} bytes, but the manifest lists {described[name].size}"
            raise ArchiveError(container.path, what, name)
    container.expect({name: record.sha256 for name, record in described.items()})
    return manifest


def verify_records(container: Container, *, unread: Collection[str] = ()) -> None:
    """Read every record except `unread`, and raise an `ArchiveError` if it is damaged."""
    for name in container.names:
        if name not in unread:
            container.verify(name)
