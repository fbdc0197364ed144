"""Read archives that `torch.export.save` wrote, and derive a manifest."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from fakexport.files.container import ArchiveError, Container, faults_named
from fakexport.files.documents import DocumentError, UnboundName

from .manifest import Location, MethodManifest, TensorEntry
from .stored_tensor import MethodRecords, StoredObject, StoredTensor, read_config, read_constant

NO_MANIFEST = "no manifest with hashes: records are only checked against their CRC-32"
_NO_DATA = "torch saved it from a fake program, without data"


def stock_manifest(container: Container, names: MethodRecords) -> tuple[MethodManifest, tuple[str, ...]]:
    """Derive the manifest of a program, and return notes on what is unknown.

    Torch writes a fake weight as a record without data, and loads such a record as zeros. fakexport keeps a
    weight fake if its record is smaller than the tensor, and rejects a program if only some of its weights
    are fake.
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
    """Return whether an archive without a manifest has pickled tensors, which only torch can read.

    Raise if other tensors have no data, because torch would load them as zeros.
    """
    found: list[tuple[str, _Stored]] = []
    for config in (config for names in methods for config in (names.weights, names.constants)):
        try:
            found += _stored(container, config).items()
        except ArchiveError:
            # There is no program, or a pickled constant is not a tensor. torch reports the error.
            return True
    without = [name for name, stored in found if not stored.has_data]
    pickled = [name for name, stored in found if stored.tensor.is_pickled]
    if without and pickled:
        raise ArchiveError(
            container.path,
            f"{pickled[0]} is pickled, so only torch can read the file, but torch would read zeros for "
            f"{without[0]}, which has no data",
        )
    return bool(pickled)


@dataclass(frozen=True)
class _Stored:
    """A tensor in a config, with the name of its record and the record's size in bytes."""

    tensor: StoredTensor
    record: str
    record_bytes: int

    @property
    def has_data(self) -> bool:
        return self.tensor.is_pickled or self.record_bytes >= self.tensor.needed_bytes


def _stored(container: Container, config: str) -> dict[str, _Stored]:
    """Return the tensors in a config. C++ objects are not returned, but their records must exist."""
    folder = config.rpartition("/")[0]
    is_of_constants = folder == "data/constants"

    def one(payload: object) -> _Stored | None:
        tensor = read_constant(payload) if is_of_constants else StoredTensor.read(payload)
        name = f"{folder}/{tensor.record}"
        if name not in container.entries:
            raise DocumentError(f"the record {name[:200]!r} is missing").within("path_name")
        return None if isinstance(tensor, StoredObject) else _Stored(tensor, name, container.size(name))

    found = read_config(container, config, one)
    return {name: stored for name, stored in found.items() if stored is not None}


def _manifest(weights: Mapping[str, _Stored], lost: Sequence[str], *, is_bound: bool) -> MethodManifest:
    groups: dict[Hashable, list[str]] = {}
    for name, stored in weights.items():
        # All fake tensors share one empty record, so the archive does not show which of them are tied.
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
        dtype=tensor.dtype,
        device=tensor.device,
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
            f"{without} weights have no data because torch saved a fake program: fakexport loads fake "
            "tensors instead, and torch loads zeros. The file does not record which of them are tied"
        )
    if lost:
        yield f"{lost} constants have no data because torch saved a fake program"
