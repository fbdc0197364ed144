"""What an archive holds, without its program being put together and without a weight being read."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from fakexport.documents.collection_pause import collection_paused
from fakexport.documents.typed_json import entries, field, mapping

from .bundle_manifest import BundleManifest
from .codec.program_outline import ProgramOutline, outline
from .container.reader import Container, read_container
from .error import faults_named
from .manifest import Manifest
from .method_records import MethodRecords
from .methods import Methods, read_methods, weight_records
from .stored_tensor import StoredObject, StoredTensor, read_constant

__all__ = ["ArchiveDescription", "BundleDescription", "StoredConstant", "describe", "describe_bundle"]


@dataclass(frozen=True)
class StoredConstant:
    """A constant tensor of the program.

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
        constants: The constant tensors, in the order of the archive.
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


@dataclass(frozen=True)
class BundleDescription:
    """What a bundle holds.

    Args:
        path, file_bytes, has_manifest, records, notes: As for an archive.
        manifest: The prefixes, and what the methods share.
        methods: What is said of each program; `records` are its own and those that it shares.
    """

    path: str
    file_bytes: int
    has_manifest: bool
    manifest: BundleManifest
    methods: Mapping[str, ArchiveDescription]
    records: Mapping[str, int]
    notes: tuple[str, ...]


def describe(
    path: str | os.PathLike[str], *, method: str | None = None, trust: bool = False
) -> ArchiveDescription:
    """What an archive of fakexport or of `torch.export.save` holds; nothing in it is run or unpickled.

    Operators need not be registered, devices need not be here. Only the records of the program and the
    configs are read and checked: a damaged weight is not noticed.

    Args:
        path: The `.pt2` file.
        method: Which program of a bundle; `describe_bundle` describes all.
        trust: Describes a file with pickled records or native libraries as well. They are left unread.
    Raises:
        ArchiveError: the file is refused, or `method` does not fit it; one line.
        OSError: it cannot be opened.
    """
    with read_container(path, trust=trust) as container:
        return _described(container, read_methods(container), method)


def describe_bundle(path: str | os.PathLike[str], *, trust: bool = False) -> BundleDescription:
    """As `describe`, of a bundle: what it says as a whole, and of each program.

    Raises:
        ArchiveError: as for `describe`; or the archive has one program and is no bundle.
        OSError: it cannot be opened.
    """
    with read_container(path, trust=trust) as container:
        methods = read_methods(container)
        return BundleDescription(
            path=container.path,
            file_bytes=container.file_bytes,
            has_manifest=methods.has_manifest,
            manifest=methods.bundle,
            methods={method: _described(container, methods, method) for method in methods.bundle.methods},
            records=_sizes(container, container.names),
            notes=methods.notes,
        )


@collection_paused()
def _described(container: Container, methods: Methods, method: str | None) -> ArchiveDescription:
    manifest = methods.manifest(method)
    names = MethodRecords() if method is None else MethodRecords(method)
    with faults_named(container.path, names.model):
        program = outline(container.json(names.model), manifest.library_modules)
    stored = _stored(container, names)
    return ArchiveDescription(
        path=container.path,
        file_bytes=container.file_bytes,
        has_manifest=methods.has_manifest,
        manifest=manifest,
        program=program,
        constants=_constants(stored, manifest),
        records=_sizes(
            container, container.names if method is None else _own_records(container, names, manifest, stored)
        ),
        notes=methods.notes,
    )


def _sizes(container: Container, names: Iterable[str]) -> dict[str, int]:
    return {name: container.size(name) for name in names}


def _own_records(
    container: Container,
    names: MethodRecords,
    manifest: Manifest,
    constants: Mapping[str, StoredTensor | StoredObject],
) -> list[str]:
    """The records of one method, in the order of the file."""
    own = {names.model, names.weights, names.constants, names.sample_inputs, *weight_records(manifest)}
    own.update(f"data/constants/{constant.record}" for constant in constants.values())
    return [name for name in container.names if name in own]


def _stored(container: Container, names: MethodRecords) -> dict[str, StoredTensor | StoredObject]:
    with faults_named(container.path, names.constants):
        config = mapping(container.json(names.constants))
        return field(config, "config", lambda value: entries(value, read_constant))


def _constants(
    stored: Mapping[str, StoredTensor | StoredObject], manifest: Manifest
) -> tuple[StoredConstant, ...]:
    reasons = {constant.name: constant.detail for constant in manifest.unbound_constants}
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
        if isinstance(tensor, StoredTensor)
    )
