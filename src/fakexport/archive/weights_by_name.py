"""Verify a checkpoint that has the weights of an archive under their names. Does not import torch."""

from __future__ import annotations

import os
from pathlib import Path

from fakexport.archive.weights import StoredEntry, WeightsReport, stored_entries
from fakexport.error import FakexportError
from fakexport.files.container import read_container
from fakexport.files.documents import differing_settings

from .manifest import ALONE, Manifest
from .manifest_json import MANIFEST, read_manifest


def verified_by_name(
    archive: str | os.PathLike[str], checkpoint: str, *, trust: bool = False
) -> WeightsReport | None:
    """Report that a checkpoint has exactly the weights of an archive: the same names, shapes and dtypes.

    Importing torch takes ten times as long. Only headers, the manifest and the hash of the program are read.

    Returns:
        The report of `verify_weights`; None for any other checkpoint or archive, and for errors.
    """
    try:
        with read_container(archive, trust=trust) as container:
            if MANIFEST not in container.entries:
                return None
            manifest = read_manifest(container)
            container.verify(f"models/{ALONE}.json")
        entries = stored_entries(Path(checkpoint))
    except (FakexportError, OSError):
        return None  # `verify_weights` raises it again.
    if entries is None or not _are_equal(manifest, entries, Path(checkpoint)):
        return None
    return WeightsReport(
        source=os.fspath(archive),
        checkpoint=checkpoint,
        weights=len(entries),
        entries=len(entries),
        entry_bytes=sum(entry.nbytes for entry in entries.values()),
        converted=0,
        findings=(),
    )


def _are_equal(manifest: Manifest, entries: dict[str, StoredEntry], checkpoint: Path) -> bool:
    if manifest.is_bundle:
        return False
    method = manifest.only
    if differing_settings(method.settings, checkpoint):
        return False  # `verify_weights` warns of them.
    if method.recipes or method.unbound_constants or method.adapter or method.parallel or method.prefix:
        return False
    found = 0
    for tensor in method.tensors:
        present = [entries[name] for name in (tensor.name, *tensor.aliases) if name in entries]
        if [(entry.shape, entry.dtype) for entry in present] != [(tensor.shape, tensor.dtype)]:
            return False
        found += 1
    return found == len(entries)
