"""Describe an archive without decoding its programs or reading its weights."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass

from fakexport.files.container import Container, faults_named, read_container
from fakexport.files.documents import collection_paused

from .codec.program_outline import ProgramOutline, outline
from .manifest import Manifest, MethodManifest, WeightTotals
from .methods import read_methods
from .stored_tensor import MethodRecords, StoredObject, StoredTensor, apart, read_config, read_constant


@dataclass(frozen=True)
class StoredConstant:
    """A constant tensor of the program.

    Args:
        name: Name in `program.constants`.
        dtype, shape, device: Properties of the tensor.
        bytes: Total size of its elements.
        reason: Why it has no value, as a sentence; None if the archive contains the value.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    device: str
    bytes: int
    reason: str | None


@dataclass(frozen=True)
class MethodDescription:
    """Description of one program in an archive.

    Args:
        manifest: Versions, source, target, weights.
        program: The program's inputs, outputs and calls.
        constants: The constant tensors, in the order of the archive.
        records: Record name -> size in bytes, in file order. Includes records that methods share.
    """

    manifest: MethodManifest
    program: ProgramOutline
    constants: tuple[StoredConstant, ...]
    records: Mapping[str, int]


@dataclass(frozen=True)
class ArchiveDescription:
    """Description of an archive and its programs.

    Args:
        path: Path of the file, as the caller passed it.
        file_bytes: Size of the file.
        has_manifest: Whether fakexport wrote the archive; otherwise `manifest` is derived from the records.
        manifest: The programs, and the weights that they share.
        methods: Method name -> description of the program; a single program is called `model`.
        records: Record name -> size in bytes, for all records including the manifest, in file order.
        notes: Sentences about what is missing or cannot be checked.
    """

    path: str
    file_bytes: int
    has_manifest: bool
    manifest: Manifest
    methods: Mapping[str, MethodDescription]
    records: Mapping[str, int]
    notes: tuple[str, ...]

    @property
    def weights(self) -> WeightTotals:
        """Totals of the weights of all methods. A weight that several methods share counts once."""
        return WeightTotals.of(self.manifest.tensors)

    @property
    def shared_weights(self) -> WeightTotals:
        """Totals of the weights that several methods share."""
        return WeightTotals.of(self.manifest.shared_tensors)

    @property
    def sha256(self) -> Mapping[str, str]:
        """Record name -> sha256, from the manifest. The manifest itself has no hash."""
        return {record.name: record.sha256 for record in self.manifest.records}

    @property
    def only(self) -> MethodDescription:
        """The description of the program, if there is only one."""
        (about,) = self.methods.values()
        return about


def describe(
    path: str | os.PathLike[str], *, method: str | None = None, trust: bool = False
) -> ArchiveDescription:
    """Describe an archive written by fakexport or torch, without running or unpickling anything in it.

    Operators need not be registered, and devices need not be available. Only the records of the programs and
    their configs are read and checked, so damaged weights are not detected.

    Args:
        path: The `.pt2` file.
        method: The program to describe from a bundle. Default: all.
        trust: Describe the file even if it contains pickled records or native libraries. They are not read.

    Raises:
        ArchiveError: The file is rejected, or does not have the method. The message is a single line.
        OSError: The file cannot be opened.
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
    stored = read_config(container, names.constants, read_constant)
    own = {names.model, names.weights, names.constants, names.sample_inputs, *manifest.weight_records}
    own |= {apart(names.weights), apart(names.constants)}
    own.update(f"data/constants/{constant.record}" for constant in stored.values())
    return MethodDescription(
        manifest=manifest,
        program=program,
        constants=_constants(stored, manifest),
        records={name: container.size(name) for name in container.names if name in own},
    )


def _constants(
    stored: Mapping[str, StoredTensor | StoredObject], manifest: MethodManifest
) -> tuple[StoredConstant, ...]:
    reasons = {constant.name: constant.detail for constant in manifest.unbound_constants}
    return tuple(
        StoredConstant(
            name=name,
            dtype=tensor.dtype,
            shape=tensor.shape,
            device=tensor.device,
            bytes=tensor.nbytes,
            reason=reasons.get(name),
        )
        for name, tensor in stored.items()
        if isinstance(tensor, StoredTensor)
    )
