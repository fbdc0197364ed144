"""Loading a program from an archive that anybody may have written."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch.export import ExportedProgram

from fakexport._torch.fake_tensors import FakeTensor, FakeTensorMode, mode_of, new_fake_mode
from fakexport._torch.program_assembly import as_parameter, fake_of, plain_meta
from fakexport._torch.real_execution import real_execution
from fakexport.devices.presence import exists_here
from fakexport.documents.collection_pause import collection_paused
from fakexport.documents.typed_json import entries, field, mapping
from fakexport.program import WeightlessProgram
from fakexport.program.program_facts import keep_facts
from fakexport.program.stand_in_inputs import give_stand_in_inputs

from .codec.operator_lookup import refuse_unregistered
from .codec.program_decoder import program_from_json
from .container.reader import Container, read_container
from .described_container import MANIFEST, verify_records
from .described_facts import described_facts
from .error import ArchiveError, faults_named
from .linked_files import linked_tensors
from .loaded_constants import put_constants
from .manifest import Location, Manifest, TensorEntry
from .method_records import MethodRecords
from .methods import check_method, read_methods, stored_methods, weight_records
from .saved_object import refuse_unregistered_classes
from .stock_archive import is_left_to_torch
from .trusted_archive import TRUSTED, describe_trusted, load_all_with_torch, load_with_torch

__all__ = ["LoadedArchive", "load", "load_archive", "read_program"]


@dataclass(frozen=True)
class LoadedArchive:
    """An archive's program and what the archive says about it.

    Args:
        program: With fake weights, or with real ones if the archive has them.
        manifest: Where it came from, what it needs. Of an archive that `torch.export.save` wrote: what its
            records show.
        notes: What could not be checked or is not there, as sentences; nothing for a manifest of fakexport.
    """

    program: ExportedProgram
    manifest: Manifest
    notes: tuple[str, ...] = ()


def load(
    path: str | os.PathLike[str],
    *,
    method: str | None = None,
    trust: bool = False,
    check_weights: bool = True,
) -> ExportedProgram:
    """The program of an archive, on any machine, whatever devices it names.

    Nothing that the file names is run, imported or unpickled. Weights are fake where the archive has none:
    the program can be read, compared and bound, and refuses to run before. Constants have their values.
    Real weights take no memory before they are used: they are mapped, from the archive or from the files
    below its folder that it is linked to (`save(link=...)`), which are opened for nothing else. An object of
    a C++ class is made by that class, of a library that you have loaded, from the state in the archive.

    Args:
        path: A `.pt2` file that `save` or `fakexport bind` wrote; or `torch.export.save`, which adds no
            hashes. Fake weights that torch saved are fakes, where `torch.export.load` would read zeros.
        method: Which program of a bundle; `load_bundle` gives all. An archive with one program has no name
            for it.
        trust: Open what can run any code, only for files that you built: programs with operators that do more
            than compute; files with native libraries, which stay unread; and those with pickled weights or
            constants, or in the layout before torch 2.8, which torch reads. Pickled example inputs need no
            trust: they are never read.
        check_weights: Whether to read all weights through and compare their hashes, which takes as long as
            reading them. Without it weights that have changed, by damage or by whoever wrote to a linked
            file, are not noticed if their description still fits; everything else is checked as ever.
    Raises:
        ArchiveError: the file is refused: damaged, hostile, of another kind or version; it is a bundle and
            no method is named, or has not this one; the library of an operator or class is not loaded; a
            linked file is missing or has changed. One line; `is_trust_missing` tells whether `trust` would
            help.
        OSError: it cannot be opened.

    Example:
        >>> from fakexport.archive import save
        >>> from fakexport.capture import export
        >>> program = export(lambda: torch.nn.Linear(4, 2), (torch.zeros(3, 4),))
        >>> _ = save(program, "/tmp/linear.pt2")
        >>> load("/tmp/linear.pt2").state_dict["weight"].shape
        torch.Size([2, 4])
    """
    return load_archive(path, method=method, trust=trust, check_weights=check_weights).program


def load_archive(
    path: str | os.PathLike[str],
    *,
    method: str | None = None,
    trust: bool = False,
    check_weights: bool = True,
) -> LoadedArchive:
    """As `load`, with what the archive says of the program."""
    try:
        with read_container(path) as container:
            return _loaded(container, method, check_weights)
    except ArchiveError as error:
        if trust and error.is_trust_missing:
            return _trusted(path, method, check_weights)
        raise


def _trusted(path: str | os.PathLike[str], method: str | None, check_weights: bool) -> LoadedArchive:
    """What only torch can read is left to torch, once the records are known to be whole."""
    methods: tuple[str, ...] = ()
    try:
        with read_container(path, trust=True) as container:
            for name in container.names:
                container.verify(name)
            methods = stored_methods(container)
            records = map(MethodRecords, methods or [MethodRecords.method])
            if MANIFEST in container.entries or not is_left_to_torch(container, records):
                return _loaded(container, method, check_weights, trust=True)
    except ArchiveError as error:
        if not error.is_trust_missing:
            raise
    check_method(path, methods, method)
    program = load_with_torch(path) if method is None else load_all_with_torch(path)[method]
    give_stand_in_inputs(program)
    return LoadedArchive(WeightlessProgram.of(program), describe_trusted(program), (TRUSTED,))


def _loaded(
    container: Container, method: str | None, check_weights: bool, *, trust: bool = False
) -> LoadedArchive:
    methods = read_methods(container)
    manifest = methods.manifest(method)
    unread = methods.weights_of_others(method)
    verify_records(
        container, methods.whole, unread=unread if check_weights else unread | weight_records(manifest)
    )
    names = MethodRecords() if method is None else MethodRecords(method)
    program = read_program(container, names, manifest, check_weights=check_weights, trust=trust)
    return LoadedArchive(program, manifest, methods.notes)


@collection_paused()
def read_program(
    container: Container,
    names: MethodRecords,
    manifest: Manifest,
    *,
    check_weights: bool,
    trust: bool = False,
) -> ExportedProgram:
    """The program of these records, once the container is verified.

    Args:
        trust: Also take operators that do more than compute, and make objects of the C++ classes that torch
            itself registers.
    Raises:
        ArchiveError: as for `load`.
    """
    with faults_named(container.path, names.model):
        refuse_unregistered(manifest.library_operators, manifest.library_modules)
        refuse_unregistered_classes(manifest.library_classes)
        document = container.json(names.model)
        program = program_from_json(document, state_dict=None, constants=None, trust=trust)
    weights = _config(container, names.weights)
    constants = _config(container, names.constants)
    mode = mode_of(
        node.meta["val"] for node in program.graph.nodes if isinstance(node.meta.get("val"), FakeTensor)
    )
    linked = linked_tensors(
        container.path, manifest.tensors, limits=container.limits, check_weights=check_weights
    )
    _put_weights(container, program, manifest, weights, linked, mode or new_fake_mode())
    with faults_named(container.path, names.constants):
        put_constants(container, program, manifest, constants, trust=trust)
    keep_facts(program, described_facts(manifest))
    made = WeightlessProgram.of(program)
    give_stand_in_inputs(made)
    return made


def _config(container: Container, name: str) -> dict[str, dict[str, Any]]:
    with faults_named(container.path, name):
        return field(mapping(container.json(name)), "config", lambda v: entries(v, mapping))


def _put_weights(
    container: Container,
    program: ExportedProgram,
    manifest: Manifest,
    config: Mapping[str, dict[str, Any]],
    linked: Mapping[str, torch.Tensor],
    mode: FakeTensorMode,
) -> None:
    """Replaces the state dict by the one that the archive describes, ties and unused weights included."""
    state: dict[str, torch.Tensor] = {}
    for entry in manifest.tensors:
        names = (entry.name, *entry.aliases)
        taken = next((program.state_dict[name] for name in names if name in program.state_dict), None)
        if taken is not None and (tuple(taken.shape), str(taken.dtype)) != (
            entry.shape,
            f"torch.{entry.dtype}",
        ):
            raise ArchiveError(container.path, "has another shape or dtype in the graph", entry.name)
        try:
            tensor = _tensor(container, entry, linked.get(entry.name), taken, mode)
        except RuntimeError as error:  # a device or a combination of properties that torch does not know
            reason = f"torch makes no such tensor: {str(error).splitlines()[0]}"
            raise ArchiveError(container.path, reason, entry.name) from error
        state.update(dict.fromkeys(names, tensor))
    if state.keys() != config.keys() or not program.state_dict.keys() <= state.keys():
        raise ArchiveError(
            container.path, "the manifest, the graph and the weights' config name other weights"
        )
    program.state_dict.clear()
    program.state_dict.update({name: state[name] for name in config})


def _tensor(
    container: Container,
    entry: TensorEntry,
    linked: torch.Tensor | None,
    taken: torch.Tensor | None,
    mode: FakeTensorMode,
) -> torch.Tensor:
    """The weight of an entry, from where its bytes are; `taken` is the fake that the graph has."""
    if entry.location is not None:
        tensor = _on_device(container, entry, linked, entry.location)
    else:
        tensor = taken if taken is not None else _fake(entry, mode)
    if entry.is_parameter and not isinstance(tensor, torch.nn.Parameter):
        tensor = torch.nn.Parameter(tensor, requires_grad=entry.requires_grad)
    return tensor


def _on_device(
    container: Container, entry: TensorEntry, linked: torch.Tensor | None, location: Location
) -> torch.Tensor:
    if not exists_here(entry.device):
        raise ArchiveError(container.path, f"is on {entry.device}, which is not on this machine", entry.name)
    with real_execution():
        return (_mapped(container, entry, location) if linked is None else linked).to(entry.device)


def _mapped(container: Container, entry: TensorEntry, location: Location) -> torch.Tensor:
    """A weight of the archive, in memory of the file: no byte is read before it is used."""
    dtype = getattr(torch, entry.dtype)
    content = container.mapped(location.file)[location.offset :][: entry.extent_bytes]
    if not content:
        return torch.empty(entry.shape, dtype=dtype)
    return torch.frombuffer(content, dtype=dtype).as_strided(entry.shape, entry.stride, entry.storage_offset)


def _fake(entry: TensorEntry, mode: FakeTensorMode) -> torch.Tensor:
    dtype = getattr(torch, entry.dtype)
    meta = plain_meta(entry.shape, entry.stride, 0, dtype)
    fake = fake_of(mode, meta, torch.device(entry.device), entry.requires_grad)
    return as_parameter(fake) if entry.is_parameter else fake
