"""What an archive holds, without its program being put together and without a weight being read."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass

from fakexport.documents.typed_json import entries, field, mapping

from .codec.collection_pause import collection_paused
from .codec.program_outline import ProgramOutline, outline
from .container.reader import Container, read_container
from .described_container import MANIFEST, read_manifest
from .error import faults_named
from .manifest import Manifest
from .saving import CONSTANTS_CONFIG, MODEL
from .stock_archive import stock_manifest
from .stored_tensor import StoredTensor

__all__ = ["ArchiveDescription", "StoredConstant", "describe"]


@dataclass(frozen=True)
class StoredConstant:
    """A constant of the program.

    Args:
        name: As `program.constants` names it.
        dtype, shape, device: Of the tensor.
        bytes: What its elements take.
        reason: Why it has no value, as a sentence; None where the archive has the value.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    device: str
    bytes: int
    reason: str | None


@dataclass(frozen=True)
class ArchiveDescription:
    """What an archive holds.

    Args:
        path: As the caller named it.
        file_bytes: Size of the file.
        has_manifest: Whether fakexport wrote it; else `manifest` is what the records show.
        manifest: Versions, source, target, weights.
        program: What it takes, gives and calls.
        constants: In the order of the archive.
        records: Name to bytes, the manifest included, in the order of the file.
        notes: What cannot be checked or is not there, as sentences.
    """

    path: str
    file_bytes: int
    has_manifest: bool
    manifest: Manifest
    program: ProgramOutline
    constants: tuple[StoredConstant, ...]
    records: Mapping[str, int]
    notes: tuple[str, ...]


def describe(path: str | os.PathLike[str], *, trust: bool = False) -> ArchiveDescription:
    """What an archive of fakexport or of `torch.export.save` holds; nothing in it is run or unpickled.

    Operators need not be registered, devices need not be here. Only the records of the program and the
    configs are read and checked: a damaged weight is not noticed.

    Args:
        path: The `.pt2` file.
        trust: Describes a file with pickled records or native libraries as well. They are left unread.
    Raises:
        ArchiveError: the file is refused; one line.
        OSError: it cannot be opened.
    """
    with read_container(path, trust=trust) as container:
        has_manifest = MANIFEST in container.entries
        manifest, notes = (read_manifest(container), ()) if has_manifest else stock_manifest(container)
        with faults_named(container.path, MODEL), collection_paused():
            program = outline(container.json(MODEL))
        return ArchiveDescription(
            path=container.path,
            file_bytes=os.stat(path).st_size,  # noqa: PTH116 (of whatever the caller calls a path)
            has_manifest=has_manifest,
            manifest=manifest,
            program=program,
            constants=_constants(container, manifest),
            records={name: container.size(name) for name in container.names},
            notes=notes,
        )


def _constants(container: Container, manifest: Manifest) -> tuple[StoredConstant, ...]:
    reasons = {constant.name: constant.detail for constant in manifest.unbound_constants}
    with faults_named(container.path, CONSTANTS_CONFIG):
        stored = field(
            mapping(container.json(CONSTANTS_CONFIG)), "config", lambda v: entries(v, StoredTensor.read)
        )
    return tuple(
        StoredConstant(
            name=name,
            dtype=str(tensor.dtype).removeprefix("torch."),
            shape=tensor.shape,
            device=str(tensor.device),
            bytes=tensor.nbytes,
            reason=reasons.get(name),
        )
        for name, tensor in stored.items()
    )
