"""Describe an archive without decoding its programs or reading its weights."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass

from fakexport.container import Container, faults_named, read_container
from fakexport.documents import collection_paused, entries, field, mapping

from .codec.program_outline import ProgramOutline, outline
from .manifest import Manifest, MethodManifest
from .method_records import MethodRecords, apart, config_record
from .methods import read_methods
from .stored_tensor import StoredObject, StoredTensor, read_constant


@dataclass(frozen=True)
class StoredConstant:
    """A constant tensor of the program.

    Args:
        name: As `program.constants` names it.
        dtype, shape, device: Properties of the tensor.
        bytes: Size of its elements.
        reason: Why it has no value, as a sentence; None where the archive has the value.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    device: str
    bytes: int
    reason: str | None


@dataclass(frozen=True)
class MethodDescription:
    """Description of one program of an archive.

    Args:
        manifest: Versions, source, target, weights.
        program: What it takes, returns and calls.
        constants: The constant tensors, in the order of the archive.
        records: Name to bytes, its own and those that it shares, in the order of the file.
    """

    manifest: MethodManifest
    program: ProgramOutline
    constants: tuple[StoredConstant, ...]
    records: Mapping[str, int]


@dataclass(frozen=True)
class ArchiveDescription:
    """Description of an archive.

    Args:
        path: As the caller named it.
        file_bytes: Size of the file.
        has_manifest: Whether fakexport wrote it; else `manifest` is what the records show.
        manifest: The programs, and what they share.
        methods: Description of each program; a single one is called `model`.
        records: Name to bytes, the manifest included, in the order of the file.
        notes: What cannot be checked or is missing, as sentences.
    """

    path: str
    file_bytes: int
    has_manifest: bool
    manifest: Manifest
    methods: Mapping[str, MethodDescription]
    records: Mapping[str, int]
    notes: tuple[str, ...]

    @property
    def only(self) -> MethodDescription:
        """The program that is described alone."""
        (about,) = self.methods.values()
        return about


def describe(
    path: str | os.PathLike[str], *, method: str | None = None, trust: bool = False
) -> ArchiveDescription:
    """Describe an archive written by fakexport or torch; nothing in it is run or unpickled.

    Operators need not be registered, nor devices available. Only the records of the programs and the
    configs are read and checked: a damaged weight goes unnoticed.

    Args:
        path: The `.pt2` file.
        method: The program to describe from a bundle. Default: all.
        trust: Also describe a file with pickled records or native libraries. They are not read.
    Raises:
        ArchiveError: the file is refused, or `method` does not fit it; one line.
        OSError: it cannot be opened.
    """
    with read_container(path, trust=trust) as container:
        methods = read_methods(container)
        manifest = methods.manifest
        chosen = manifest.methods if method is None else (methods.chosen(container.path, method),)
        return ArchiveDescription(
            path=container.path,
            file_bytes=container.file_bytes,
            has_manifest=methods.has_manifest,
            manifest=manifest,
            methods={name: _described(container, name, manifest.methods[name]) for name in chosen},
            records={name: container.size(name) for name in container.names},
            notes=methods.notes,
        )


@collection_paused()
def _described(container: Container, method: str, manifest: MethodManifest) -> MethodDescription:
    names = MethodRecords(method)
    with faults_named(container.path, names.model):
        program = outline(container.json(names.model), manifest.library_modules)
    stored = _stored(container, names)
    own = {names.model, names.weights, names.constants, names.sample_inputs, *manifest.weight_records}
    own |= {apart(names.weights), apart(names.constants)}
    own.update(f"data/constants/{constant.record}" for constant in stored.values())
    return MethodDescription(
        manifest=manifest,
        program=program,
        constants=_constants(stored, manifest),
        records={name: container.size(name) for name in container.names if name in own},
    )


def _stored(container: Container, names: MethodRecords) -> dict[str, StoredTensor | StoredObject]:
    place = config_record(names.constants, container.entries)
    with faults_named(container.path, place):
        config = mapping(container.json(place))
        return field(config, "config", lambda value: entries(value, read_constant))


def _constants(
    stored: Mapping[str, StoredTensor | StoredObject], manifest: MethodManifest
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
