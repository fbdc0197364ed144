"""What the fuzzer calls with each input: opening an archive and reading all of it, and its manifest alone."""

from __future__ import annotations

import io
import json
import tempfile
import zipfile
from collections.abc import Callable
from pathlib import Path

from fakexport.archive.container.reader import Limits, read_container
from fakexport.archive.described_container import MANIFEST, read_manifest, verify_records
from fakexport.archive.error import ArchiveError
from fakexport.archive.manifest_json import decode_manifest, encode_manifest
from fakexport.documents.document_error import DocumentError
from tests.unit.archive.described import manifest, write_sample
from tests.unit.archive.forged_zip import Forged, Part

LIMITS = Limits(record_bytes=1 << 20, inflated_bytes=4 << 20, json_bytes=1 << 20)


def open_archive(content: bytes) -> None:
    """Fails on anything but acceptance or an `ArchiveError`; what is accepted, zipfile must see alike."""
    with tempfile.NamedTemporaryFile(suffix=".pt2") as file:
        file.write(content)
        file.flush()
        try:
            with read_container(file.name, limits=LIMITS) as container:
                records = {name: container.record(name) for name in container.names}
                folder = container.folder
                if MANIFEST in records:
                    verify_records(container, read_manifest(container))
            refusal = ""
        except ArchiveError as error:
            refusal = str(error)
    if refusal:
        assert len(refusal.splitlines()) == 1
        return
    with zipfile.ZipFile(io.BytesIO(content)) as zipped:
        assert zipped.namelist() == [f"{folder}/{name}" for name in records]
        for name, record in records.items():
            assert zipped.read(f"{folder}/{name}") == record


def open_manifest(content: bytes) -> None:
    """Fails on anything but a `DocumentError` or a manifest that comes back as it was."""
    try:
        found = decode_manifest(content, LIMITS)
    except DocumentError:
        return
    assert decode_manifest(encode_manifest(found), LIMITS) == found


TARGETS: dict[str, Callable[[bytes], None]] = {"archive": open_archive, "manifest": open_manifest}


def seeds(target: str) -> list[bytes]:
    """A few honest inputs for the fuzzer to begin with, made anew each time."""
    if target == "manifest":
        sample = json.loads(encode_manifest(manifest()))
        return [encode_manifest(manifest()), json.dumps(sample, indent=1).encode()]
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.pt2"
        write_sample(path)
        described = path.read_bytes()
    parts = [Part(b"model/extra/x.json", b'{"a": 1}' * 9, method=8), Part(b"model/extra/y", b"y")]
    return [described, Forged(parts).bytes(), Forged().bytes()]
