"""Copy the programs of several archives into one, without decoding their graphs. Needs no torch."""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Callable, Hashable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

from fakexport.error import FakexportError, InvalidValue
from fakexport.exporting.interface import is_lifted
from fakexport.files.container import ArchiveError, Container, Content, read_container
from fakexport.files.documents import MAX_INTEGER, DocumentError, collection_paused, field, mapping

from .codec.program_outline import is_loadable
from .manifest import Location, Manifest, MethodManifest, Prefix, TensorEntry
from .manifest_json import verify_records, write_described
from .methods import Methods, read_methods
from .pickled_state import is_plain
from .shared_names import (
    NamedTensors,
    SharedWeight,
    check_method_names,
    chosen_prefixes,
    name_in_checkpoint,
    shared_names,
)
from .shared_records import ABSENT, ComputedRecords, Payload, method_records, share_records
from .stored_tensor import MethodRecords, StoredObject, StoredTensor, read_config, read_constant

_BUFFER = re.compile(
    rb'\{"buffer":\{"arg":\{"name":"[^"\\]*"\},"buffer_name":"([^"\\]*)","persistent":false\}\}', re.ASCII
)
"""A buffer outside the state dict, in the document of a program. No text in JSON can contain this."""


class NeedsTorch(FakexportError, ValueError):
    """A program cannot be copied: the loader must decode or reject it."""


ProgramOfArchive = tuple[str | os.PathLike[str], str | None]
"""The path of an archive, and the method of a program in it; None if the archive is not a bundle."""


def merge(
    programs: Mapping[str, ProgramOfArchive],
    path: str | os.PathLike[str],
    *,
    prefixes: Mapping[str, str | Prefix] | None = None,
    trust: bool = False,
) -> Manifest | None:
    """Write the bundle that `save_bundle` would write for the loaded programs, and return its manifest.

    The archives are untrusted, and all of their records are checked, except for the arguments and the
    metadata of the nodes: they are checked when the bundle is loaded. The manifest keeps the versions that
    exported each program.

    Args:
        programs: The programs to copy, by method in the bundle.
        path, prefixes: As for `save_bundle`.
        trust: Whether the archives were built by the user, so that the programs in them need no checks.

    Returns:
        None if the programs must be loaded instead, because the loader may reject one, or because it is not
        simple: torch wrote the archive, it has C++ objects or linked weights, or only the schemas of the
        operators tell whether two programs share a tensor.

    Raises:
        InvalidValue: As for `Bundle`; or the programs exceed the size limit for an archive.
        OSError, FileWriteError: As for `load` and `save`.
    """
    check_method_names(programs)
    try:
        with ExitStack() as stack:
            reading = _Reading(stack, trust=trust)
            found = {method: reading.program(each) for method, each in programs.items()}
            chosen = chosen_prefixes(
                {method: each.about.prefix for method, each in found.items()},
                prefixes or {},
                {method: each.weights.config for method, each in found.items()},
            )
            shared = _shared(found, chosen, reading.known(programs)) if len(found) > 1 else ()
            return _written(path, found, shared, chosen)
    except (ArchiveError, DocumentError, NeedsTorch):
        return None


def _written(
    path: str | os.PathLike[str],
    programs: Mapping[str, _Program],
    shared: tuple[SharedWeight, ...],
    prefixes: Mapping[str, Prefix],
) -> Manifest:
    weights = {method: each.weights for method, each in programs.items()}
    constants = {method: each.constants for method, each in programs.items()}
    if len(programs) > 1:
        share_records(weights, constants, shared)
    about: dict[str, MethodManifest] = {}
    records: dict[str, Content] = {}
    computed = ComputedRecords()
    for method, each in programs.items():
        records |= method_records(
            MethodRecords(method), each.model, each.sample_inputs, weights[method], constants[method]
        )
        about[method] = replace(
            each.about,
            tensors=tuple(sorted(weights[method].tensors, key=lambda tensor: tensor.name)),
            computed=computed.add(each.computed),
            prefix=prefixes.get(method),
        )
    return write_described(path, records | computed.records, Manifest(methods=about, shared=shared))


@dataclass(frozen=True, eq=False)
class _Tensor:
    """A weight or a constant. `record` and `sha256` are None if the archive does not contain its data."""

    names: tuple[str, ...]
    entry: Mapping[str, Any]
    stored: StoredTensor
    record: str | None
    sha256: str | None

    @property
    def kind(self) -> Hashable:
        """The properties in which a shared weight must be equal."""
        stored = self.stored
        return stored.dtype, stored.shape, stored.stride, stored.device


@dataclass(frozen=True)
class _Program:
    """The parts of a program, with the record numbers of the bundle.

    `shareable` are the tensors that other programs may share, by name. `unclear` are the names of the tensors
    that other programs share only if a program writes to them.
    """

    about: MethodManifest
    model: bytes
    sample_inputs: bytes
    weights: Payload
    constants: Payload
    computed: Mapping[str, Content | None]
    shareable: Mapping[str, _Tensor]
    unclear: frozenset[str]


class _Reading:
    """Read programs, and number their records as `save_bundle` does."""

    def __init__(self, stack: ExitStack, *, trust: bool) -> None:
        self._stack, self._trust = stack, trust
        self._opened: dict[str, tuple[Container, Methods]] = {}
        self._weights = self._constants = self._model_bytes = 0

    @collection_paused()
    def program(self, asked: ProgramOfArchive) -> _Program:
        """Read a program, and check it."""
        container, methods = self._open(asked[0])
        own = methods.chosen(*asked)
        about, names = methods.manifest.methods[own], MethodRecords(own)
        self._model_bytes += container.size(names.model)
        if self._model_bytes > (most := container.limits.json_bytes):
            raise InvalidValue(f"the programs exceed {most} bytes, the limit for one archive")
        if about.weights == "linked" or (about.weights == "inside" and about.unbound_constants):
            raise NeedsTorch("linked weights, or a constant without a value")
        if container.size(names.sample_inputs) > container.limits.state_bytes:
            raise NeedsTorch("large example inputs")
        model, inputs = container.record(names.model), container.record(names.sample_inputs)
        if not self._trust and not (
            is_loadable(container.json(names.model), about.library_modules) and is_plain(inputs)
        ):
            raise NeedsTorch("a program that the loader may reject")
        sha256 = {record.name: record.sha256 for record in methods.manifest.records}
        weights = _weights(container, names, about, sha256)
        constants = _constants(container, names, about, sha256)
        buffers = {name.decode() for name in _BUFFER.findall(model)}
        found = _Program(
            about,
            model,
            inputs,
            _payload(container, weights, "data/weights/weight", self._weights),
            _payload(container, constants, "data/constants/tensor", self._constants),
            {
                name: None if record is None else container.streamed(record)
                for name, record in sorted(about.computed.items())
            },
            {**weights, **{name: tensor for name, tensor in constants.items() if name in buffers}},
            frozenset(name for name in constants.keys() - buffers if not is_lifted(name)),
        )
        self._weights += len(found.weights.config)
        self._constants += len(found.constants.config)
        return found

    def known(self, programs: Mapping[str, ProgramOfArchive]) -> tuple[SharedWeight, ...]:
        """Return the weights that the archives list as shared, by method in the bundle."""
        return tuple(
            tuple((name, weight) for own, weight in group for name in of if of[name] == own)
            for path, (_, methods) in self._opened.items()
            for of in ({name: own for name, (each, own) in programs.items() if os.fspath(each) == path},)
            for group in methods.manifest.shared
        )

    def _open(self, path: str | os.PathLike[str]) -> tuple[Container, Methods]:
        key = os.fspath(path)
        if key not in self._opened:
            container = self._stack.enter_context(read_container(path, trust=self._trust))
            methods = read_methods(container)
            if not methods.has_manifest:
                raise NeedsTorch("torch wrote the archive")
            verify_records(container)
            self._opened[key] = container, methods
        return self._opened[key]


def _weights(
    container: Container, names: MethodRecords, about: MethodManifest, sha256: Mapping[str, str]
) -> dict[str, _Tensor]:
    """Return the weights of a program, whose config must agree with the manifest."""
    entries = {name: entry for entry in about.tensors for name in (entry.name, *entry.aliases)}
    config = read_config(container, names.weights, mapping)
    if config.keys() != entries.keys():
        raise NeedsTorch("the manifest and the weights config do not list the same weights")
    found = _tensors(container, config, lambda name, _: entries[name].name, "data/weights", sha256)
    if any(_entry(tensor, tensor.record) != entries[name] for name, tensor in found.items()):
        raise NeedsTorch("the manifest and the weights config describe a weight differently")
    return found


def _constants(
    container: Container, names: MethodRecords, about: MethodManifest, sha256: Mapping[str, str]
) -> dict[str, _Tensor]:
    """Return the constants of a program. Constants without a value are separate tensors, as for `load`."""
    unbound = {constant.name for constant in about.unbound_constants}
    config = read_config(container, names.constants, mapping)
    key = lambda name, stored: name if name in unbound else stored  # noqa: E731
    found = _tensors(container, config, key, "data/constants", sha256)
    if {name for name, tensor in found.items() if tensor.record is None} != unbound:
        raise NeedsTorch("the manifest and the constants config list different constants without a value")
    return found


def _tensors(
    container: Container,
    config: Mapping[str, dict[str, Any]],
    key: Callable[[str, StoredTensor], Hashable],
    folder: str,
    sha256: Mapping[str, str],
) -> dict[str, _Tensor]:
    """Return the tensors of a config by name, in order. Names with the same key have the same tensor."""
    groups: dict[Hashable, list[str]] = {}
    stored: dict[str, StoredTensor] = {}
    for name, entry in config.items():
        one = field({name: entry}, name, read_constant)
        if isinstance(one, StoredObject) or one.is_pickled or one.needed_bytes > MAX_INTEGER:
            raise NeedsTorch("a C++ object, a pickled tensor, or a tensor larger than any memory")
        stored[name] = one
        groups.setdefault(key(name, one), []).append(name)
    found: dict[str, _Tensor] = {}
    for names in groups.values():
        one = stored[names[0]]
        record = None if one.record in ABSENT else f"{folder}/{one.record}"
        if any(config[name] != config[names[0]] for name in names):
            raise NeedsTorch("names of the same tensor with different properties")
        if record is not None and (one.offset or container.size(record) != one.needed_bytes):
            raise NeedsTorch("a tensor that is only a part of its record")
        tensor = _Tensor(tuple(names), config[names[0]], one, record, sha256.get(record or ""))
        found |= dict.fromkeys(names, tensor)
    return {name: found[name] for name in config}


def _payload(container: Container, tensors: Mapping[str, _Tensor], prefix: str, first: int) -> Payload:
    """Return the payload of tensors, with records numbered from `first`."""
    places: dict[_Tensor, str | None] = {}
    for index, tensor in enumerate(dict.fromkeys(tensors.values()), first):
        places[tensor] = None if tensor.record is None else f"{prefix}_{index}"
    return Payload(
        config={
            name: {**tensor.entry, "path_name": (places[tensor] or tensor.stored.record).rpartition("/")[2]}
            for name, tensor in tensors.items()
        },
        records={
            place: container.streamed(tensor.record)
            for tensor, place in places.items()
            if place is not None and tensor.record is not None
        },
        tensors=tuple(_entry(tensor, place) for tensor, place in places.items()),
    )


def _entry(tensor: _Tensor, record: str | None) -> TensorEntry:
    """Return the manifest's entry for a weight."""
    stored = tensor.stored
    return TensorEntry(
        name=tensor.names[0],
        aliases=tuple(sorted(tensor.names[1:])),
        shape=stored.shape,
        stride=stored.stride,
        storage_offset=stored.offset,
        dtype=stored.dtype,
        device=stored.device,
        is_parameter=stored.is_parameter,
        requires_grad=stored.requires_grad,
        persistent=True,
        source=tensor.names[0],
        location=None if record is None else Location(record, 0, stored.needed_bytes),
    )


def _shared(
    programs: Mapping[str, _Program], prefixes: Mapping[str, Prefix], known: Sequence[SharedWeight]
) -> tuple[SharedWeight, ...]:
    """Return the weights that the programs share. `Bundle` raises an error if they differ."""

    def key(method: str, name: str) -> Hashable:
        return programs[method].about.parallel, name_in_checkpoint(name, prefixes.get(method))

    every = programs.items()
    if len({each.about.weights for each in programs.values() if each.about.tensors}) > 1:
        raise NeedsTorch("only some of the programs have weights")
    if any(name not in programs[method].shareable for group in known for method, name in group):
        raise NeedsTorch("a shared tensor that is not a weight or a buffer")
    holders = Counter(
        key(m, name) for m, each in every for name in (*each.weights.config, *each.constants.config)
    )
    if any(holders[key(method, name)] > 1 for method, each in every for name in each.unclear):
        raise NeedsTorch("two programs have an attribute that one of them may write")
    named = {method: NamedTensors(each.about.parallel, each.shareable) for method, each in every}
    shared = shared_names(named, prefixes, known)
    for group in shared:
        for (method, name), (other, other_name) in pairwise(group):
            first, second = programs[method].shareable[name], programs[other].shareable[other_name]
            has_data = first.sha256 is not None and second.sha256 is not None
            if method == other or first.kind != second.kind or (has_data and first.sha256 != second.sha256):
                raise NeedsTorch("two weights that would be shared differ")
    return shared
