"""Archives of `torch.export.save`: a manifest from their records, and those that torch reads if trusted."""

from __future__ import annotations

import os
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

import torch
from torch.export import ExportedProgram

from fakexport._torch.stock_reading import programs_of, reading_fault, unregistered_class
from fakexport.container import ArchiveError, Container, faults_named
from fakexport.documents import DocumentError, UnboundName, entries, field, mapping
from fakexport.error import type_and_line

from .manifest import Location, MethodManifest, TensorEntry
from .method_records import MethodRecords
from .payload import weights_payload
from .saved_object import unregistered
from .stored_tensor import StoredObject, StoredTensor, read_constant

NO_MANIFEST = "no manifest: records are checked against their CRC-32; there are no hashes to check"
_NO_DATA = "torch saved it from a fake program, without its data"


def stock_manifest(container: Container, names: MethodRecords) -> tuple[MethodManifest, tuple[str, ...]]:
    """Return a manifest for the tensors of this program, and notes on what is unknown.

    Torch writes a fake weight as a record without data, and reads zeros in its place. A record that is
    smaller than its tensor does not count as data here: the weight is fake, as it was.

    Raises:
        ArchiveError: no such program, a config that is refused, or only some weights with data.
    """
    if names.model not in container.entries:
        raise ArchiveError(container.path, "is missing: the archive contains no program", names.model)
    weights, constants = (_stored(container, config) for config in (names.weights, names.constants))
    without = [name for name, stored in weights.items() if not stored.has_data]
    sized = [name for name, stored in weights.items() if stored.tensor.needed_bytes]
    if without and len(without) < len(sized):
        what = f"{len(without)} of {len(sized)} weights have no data, such as {without[0]}"
        raise ArchiveError(container.path, what, names.weights)
    lost = [name for name, stored in constants.items() if not stored.has_data]
    with faults_named(container.path, names.weights):
        manifest = _manifest(weights, lost, is_bound=bool(weights) and not without)
    return manifest, tuple(_notes(len(without), len(lost)))


def is_left_to_torch(container: Container, methods: Iterable[MethodRecords]) -> bool:
    """Return whether only torch can read a trusted archive without a manifest: it has pickled tensors.

    Raises:
        ArchiveError: some tensors have no data, and others are pickled: no reader reads both. torch would
            replace tensors without data with zeros.
    """
    found: list[tuple[str, _Stored]] = []
    for config in (config for names in methods for config in (names.weights, names.constants)):
        try:
            found += _stored(container, config).items()
        except ArchiveError:
            return True  # No program, or a pickled constant that is not a tensor: for torch to say.
    without = [name for name, stored in found if not stored.has_data]
    pickled = [name for name, stored in found if stored.tensor.is_pickled]
    if without and pickled:
        raise ArchiveError(container.path, f"{without[0]} has no data, but {pickled[0]} is pickled")
    return bool(pickled)


@dataclass(frozen=True)
class _Stored:
    """A tensor of a config, the name of its record, and its size in bytes."""

    tensor: StoredTensor
    record: str
    record_bytes: int

    @property
    def has_data(self) -> bool:
        return self.tensor.is_pickled or self.record_bytes >= self.tensor.needed_bytes


def _stored(container: Container, config: str) -> dict[str, _Stored]:
    """Return the tensors of a config; a C++ object is not a tensor, but its record must exist."""
    folder = config.rpartition("/")[0]
    is_of_constants = folder == "data/constants"

    def one(payload: object) -> _Stored | None:
        tensor = read_constant(payload) if is_of_constants else StoredTensor.read(payload)
        name = f"{folder}/{tensor.record}"
        if name not in container.entries:
            raise DocumentError(f"the record {name[:200]!r} is missing").within("path_name")
        return None if isinstance(tensor, StoredObject) else _Stored(tensor, name, container.size(name))

    def all_of(value: object) -> dict[str, _Stored]:
        if len(mapping(value)) > container.limits.entries:
            raise DocumentError(f"more than {container.limits.entries} tensors")
        return {name: stored for name, stored in entries(value, one).items() if stored is not None}

    with faults_named(container.path, config):
        return field(mapping(container.json(config)), "config", all_of)


def _manifest(weights: Mapping[str, _Stored], lost: Sequence[str], *, is_bound: bool) -> MethodManifest:
    groups: dict[Hashable, list[str]] = {}
    for name, stored in weights.items():
        # All fakes are in one empty record: it does not tell which of them are tied.
        groups.setdefault(stored.tensor if is_bound and stored.tensor.needed_bytes else name, []).append(name)
    try:
        return MethodManifest(
            versions={},
            source="",
            device_map={},
            unbound_constants=tuple(UnboundName(name, "unknown", _NO_DATA) for name in lost),
            weights="inside" if is_bound else "none",
            tensors=tuple(_entry(names, weights[names[0]], is_bound=is_bound) for names in groups.values()),
        )
    except ValueError as error:
        raise DocumentError(str(error)) from None


def _entry(names: Sequence[str], stored: _Stored, *, is_bound: bool) -> TensorEntry:
    tensor = stored.tensor
    return TensorEntry(
        name=names[0],
        aliases=tuple(names[1:]),
        shape=tensor.shape,
        stride=tensor.stride,
        storage_offset=tensor.offset,
        dtype=str(tensor.dtype).removeprefix("torch."),
        device=str(tensor.device),
        is_parameter=tensor.is_parameter,
        requires_grad=tensor.requires_grad,
        persistent=True,
        source=names[0],
        location=Location(stored.record, 0, stored.record_bytes) if is_bound else None,
    )


def _notes(without: int, lost: int) -> Iterator[str]:
    yield NO_MANIFEST
    if without:
        yield (
            f"{without} weights have no data, because torch saved a fake program: they are fake here, and "
            "zeros when torch loads the file. The file does not say which of them are tied"
        )
    if lost:
        yield f"{lost} constants have no data, for the same reason"


T = TypeVar("T")

TRUSTED = "trusted: torch read it, which can run code from the file"
"Note on such a file."


def load_with_torch(path: str | os.PathLike[str]) -> ExportedProgram:
    """Load a file with `torch.export.load`.

    Raises:
        ArchiveError: torch cannot read it; in one line.
    """
    return _read(path, torch.export.load, "torch.export.load")


def load_all_with_torch(path: str | os.PathLike[str]) -> dict[str, ExportedProgram]:
    """Load a file of several programs with torch's `load_pt2`, by name.

    Raises:
        ArchiveError: as for `load_with_torch`.
    """
    return _read(path, programs_of, "torch's load_pt2")


def describe_trusted(program: ExportedProgram) -> MethodManifest:
    """Describe a program that torch read."""
    weights = weights_payload(program)
    return MethodManifest(
        versions={},
        source="",
        device_map={},
        weights="inside" if weights.tensors else "none",
        tensors=weights.tensors,
    )


def _read(path: str | os.PathLike[str], read: Callable[[str], T], reader: str) -> T:
    try:
        return read(os.fspath(path))
    except Exception as error:
        raise ArchiveError(path, _reason(reading_fault(os.fspath(path), error), reader)) from error


def _reason(fault: Exception, reader: str) -> str:
    name = unregistered_class(fault)
    if name is not None:
        return unregistered(name)
    return f"{reader} cannot read it: {type_and_line(fault)}"
