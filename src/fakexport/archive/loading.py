"""Load programs from an untrusted archive."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from typing import Any

import torch
from torch.export import ExportedProgram

from fakexport._torch.emulation.fake_tensors import (
    FakeTensor,
    FakeTensorMode,
    devices_unused,
    mode_of,
    new_fake_mode,
)
from fakexport._torch.operators.real_execution import real_execution
from fakexport._torch.tracing.program_assembly import as_parameter, fake_of, plain_meta
from fakexport._torch.tracing_lock import one_at_a_time
from fakexport.emulation.devices import exists_here
from fakexport.error import first_line
from fakexport.exporting.program import (
    ProgramFacts,
    UnboundConstant,
    WeightlessProgram,
    give_stand_in_inputs,
    keep_facts,
)
from fakexport.files.container import ArchiveError, Container, faults_named, read_container
from fakexport.files.documents import collection_paused, mapping

from .bundle import Bundle
from .codec.operator_lookup import refuse_unregistered
from .codec.program import program_from_json
from .computed_weights import read_computed
from .linked_files import linked_tensors
from .loaded_constants import put_constants
from .manifest import ALONE, Location, Manifest, MethodManifest, TensorEntry
from .manifest_json import MANIFEST, verify_records
from .methods import check_method, made_up_prefixes, read_methods, stored_methods
from .saved_object import refuse_unregistered_classes
from .sharing import unify
from .stock_archive import is_left_to_torch
from .stored_tensor import MethodRecords, read_config
from .trusted_archive import TRUSTED, describe_trusted, load_with_torch


@dataclass(frozen=True)
class LoadedArchive:
    """An archive's programs and its metadata.

    Args:
        bundle: The programs by method, with real weights if the archive has them, otherwise fake ones.
        manifest: The metadata of the archive. For archives of `torch.export.save`, it is derived from the
            records.
        notes: Sentences about what is missing or could not be checked; empty if fakexport wrote the manifest.
    """

    bundle: Bundle
    manifest: Manifest
    notes: tuple[str, ...] = ()

    @property
    def program(self) -> ExportedProgram:
        """The only loaded program. Raises if there are several."""
        (program,) = self.bundle.values()
        return program

    @property
    def only(self) -> MethodManifest:
        """The manifest of the only loaded program. Raises if there are several."""
        (method,) = self.bundle
        return self.manifest.methods[method]


@one_at_a_time
def load(
    path: str | os.PathLike[str],
    *,
    method: str | None = None,
    trust: bool = False,
    check_weights: bool = True,
) -> ExportedProgram:
    """Load the program of an archive. The devices that the program names need not exist on this machine.

    Nothing that the file names is run, imported or unpickled. If the archive has no weights, the program has
    fake weights: you can inspect, compare and bind it, but you cannot run it until it is bound. Constants
    have their values.

    Real weights take no memory until they are used: they are memory-mapped from the archive, or from the
    linked files below its folder (`save(link=...)`). A C++ object is created from its state in the archive,
    if you have loaded the library that registers its class.

    Args:
        path: A `.pt2` file written by `save`, by `fakexport bind`, or by `torch.export.save`, which adds no
            hashes. Fake weights that torch saved stay fake; `torch.export.load` would read zeros.
        method: The program to load from a bundle; `load_bundle` loads all programs. Not needed for a single
            program.
        trust: Accept files that can run code. Set it only for files that you built. It allows operators with
            side effects, and files with native libraries (which are not read). It also lets torch read
            pickled weights and constants, and files in the layout that torch wrote before 2.8. Pickled
            example inputs need no trust, because they are never read.
        check_weights: Whether to read all weights and compare their hashes. This takes as long as reading the
            files. Otherwise, damaged weights and modified linked files are detected only if shapes or dtypes
            changed. Everything else is always checked.

    Raises:
        ArchiveError: The file is damaged, hostile, or of a different kind or version; it is a bundle and no
            method is given, or the method does not exist; the library of an operator or class is not loaded;
            or a linked file is missing or has changed. The message is a single line; `is_trust_missing` is
            true if `trust` would help.
        OSError: The file cannot be opened.

    Example:
        >>> from fakexport.archive import save
        >>> from fakexport.exporting.capture import export
        >>> program = export(lambda: torch.nn.Linear(4, 2), (torch.zeros(3, 4),))
        >>> _ = save(program, "/tmp/linear.pt2")
        >>> load("/tmp/linear.pt2").state_dict["weight"].shape
        torch.Size([2, 4])
    """
    return load_archive(path, method=method, trust=trust, check_weights=check_weights).program


@one_at_a_time
def load_bundle(
    path: str | os.PathLike[str],
    *,
    methods: Sequence[str] = (),
    trust: bool = False,
    check_weights: bool = True,
) -> Bundle:
    """Load several programs of an archive, by method. `load` returns only one of them.

    A weight that several methods share is one tensor. It takes memory once, and if one method writes into it,
    all methods see the change. For the checks, and the fake weights of unbound programs, see `load`.

    Args:
        path: A `.pt2` file written by `save` or `save_bundle`; a single program becomes the method `model`.
            Or a file written by torch's `package_pt2`, whose programs do not share weights.
        methods: The programs to load from a bundle. Default: all.
        trust: As for `load`. A file with pickled weights or constants is read by torch's `load_pt2`, which
            can run code from the file. Pickled example inputs, which `package_pt2` writes, are never read.
        check_weights: As for `load`.

    Raises:
        ArchiveError, OSError: As for `load`.

    Example:
        >>> import torch
        >>> from fakexport.archive import save_bundle
        >>> from fakexport.exporting.capture import export
        >>> _ = save_bundle({"only": export(torch.nn.Linear(4, 2), (torch.zeros(3, 4),))}, "/tmp/one.pt2")
        >>> load_bundle("/tmp/one.pt2")
        Bundle(only; without weights, 0 weights shared)
    """
    given: dict[str, Any] = {"trust": trust, "check_weights": check_weights}
    return load_archive(path, is_whole=True, methods=methods, **given).bundle


def load_archive(
    path: str | os.PathLike[str],
    *,
    method: str | None = None,
    is_whole: bool = False,
    methods: Sequence[str] = (),
    trust: bool = False,
    check_weights: bool = True,
) -> LoadedArchive:
    """Load an archive as `load` does or, with `is_whole`, as `load_bundle` does. Also return its metadata."""
    asked = _Asked(method, is_whole, tuple(methods), check_weights)
    try:
        with read_container(path) as container:
            return _loaded(container, asked)
    except ArchiveError as error:
        if trust and error.is_trust_missing:
            return _trusted(path, asked)
        raise


@dataclass(frozen=True)
class _Asked:
    """The arguments of `load_archive`."""

    method: str | None
    is_whole: bool
    methods: tuple[str, ...]
    check_weights: bool
    is_trusted: bool = False


def _trusted(path: str | os.PathLike[str], asked: _Asked) -> LoadedArchive:
    """Load an archive that needs trust. If fakexport cannot, verify its records, and let torch load it."""
    names: tuple[str, ...] = ()
    try:
        with read_container(path, trust=True) as container:
            names = stored_methods(container)
            records = map(MethodRecords, names or [ALONE])
            if MANIFEST in container.entries or not is_left_to_torch(container, records):
                return _loaded(container, replace(asked, is_trusted=True))
            verify_records(container)
    except ArchiveError as error:
        if not error.is_trust_missing:
            raise
    for name in asked.methods if asked.is_whole else [asked.method]:
        check_method(path, names, name)
    found = load_with_torch(path, is_package=bool(names))
    chosen = (asked.methods or tuple(found)) if asked.is_whole else [asked.method or ALONE]
    programs = {name: WeightlessProgram.of(found[name]) for name in chosen}
    for program in programs.values():
        give_stand_in_inputs(program)
    try:
        manifest = Manifest(methods={name: describe_trusted(found) for name, found in programs.items()})
        return LoadedArchive(Bundle(programs, prefixes=made_up_prefixes(manifest)), manifest, (TRUSTED,))
    except ValueError as error:
        raise ArchiveError(path, str(error)) from error


@collection_paused()
@devices_unused()
def _loaded(container: Container, asked: _Asked) -> LoadedArchive:
    methods = read_methods(container)
    manifest = methods.manifest
    chosen = tuple(manifest.methods)
    if asked.methods or not asked.is_whole:
        chosen = tuple(methods.chosen(container.path, name) for name in asked.methods or [asked.method])
    unread = methods.weights_of_others(chosen if asked.check_weights else ())
    verify_records(container, unread=unread)
    programs = {
        method: _read_program(container, MethodRecords(method), manifest.methods[method], asked)
        for method in chosen
    }
    apart = ([one for one in group if one[0] in programs] for group in manifest.shared)
    shared = tuple(tuple(group) for group in apart if len(group) > 1)
    prefixes = made_up_prefixes(manifest) if asked.is_whole and not methods.has_manifest else {}
    try:
        bundle = Bundle(programs, prefixes=prefixes, shared=shared)
    except ValueError as error:
        raise ArchiveError(container.path, str(error)) from error
    if set(map(frozenset, bundle.shared)) != set(map(frozenset, shared)):
        raise ArchiveError(container.path, "the manifest and the programs disagree about shared weights")
    unify(programs, bundle.shared)
    return LoadedArchive(bundle, manifest, methods.notes)


def _read_program(
    container: Container, names: MethodRecords, manifest: MethodManifest, asked: _Asked
) -> ExportedProgram:
    """Load one program from its records, which must have been verified.

    A trusted program may call operators with side effects, and use C++ classes that torch itself registers.
    """
    with faults_named(container.path, names.model):
        refuse_unregistered(manifest.library_operators, manifest.library_modules)
        refuse_unregistered_classes(manifest.library_classes)
        document = container.json(names.model)
        program = program_from_json(document, trust=asked.is_trusted)
    weights = read_config(container, names.weights, mapping)
    constants = read_config(container, names.constants, mapping)
    mode = mode_of(
        node.meta["val"] for node in program.graph.nodes if isinstance(node.meta.get("val"), FakeTensor)
    )
    linked = linked_tensors(
        container.path, manifest.tensors, limits=container.limits, check_weights=asked.check_weights
    )
    _put_weights(container, program, manifest, weights, linked, mode or new_fake_mode())
    with faults_named(container.path, names.constants):
        put_constants(container, program, manifest, constants, trust=asked.is_trusted)
    keep_facts(program, replace(described_facts(manifest), computed=read_computed(container, manifest)))
    made = WeightlessProgram.of(program)
    give_stand_in_inputs(made)
    return made


def _put_weights(
    container: Container,
    program: ExportedProgram,
    manifest: MethodManifest,
    config: Mapping[str, dict[str, Any]],
    linked: Mapping[str, torch.Tensor],
    mode: FakeTensorMode,
) -> None:
    """Put the weights in the manifest into the program's state dict, including tied and unused weights."""
    state: dict[str, torch.Tensor] = {}
    for entry in manifest.tensors:
        names = (entry.name, *entry.aliases)
        taken = next((program.state_dict[name] for name in names if name in program.state_dict), None)
        if taken is not None and (tuple(taken.shape), str(taken.dtype)) != (
            entry.shape,
            f"torch.{entry.dtype}",
        ):
            raise ArchiveError(container.path, "has a different shape or dtype in the graph", entry.name)
        try:
            tensor = _tensor(container, entry, linked.get(entry.name), taken, mode)
        except RuntimeError as error:  # a device or property that torch does not support
            reason = f"torch cannot create such a tensor: {first_line(error)}"
            raise ArchiveError(container.path, reason, entry.name) from error
        state.update(dict.fromkeys(names, tensor))
    if state.keys() != config.keys() or not program.state_dict.keys() <= state.keys():
        raise ArchiveError(
            container.path, "the manifest, the graph and the weights config do not list the same weights"
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
    """Return a weight from the archive or a linked file.

    A weight without data is fake. It is `taken`, the fake tensor in the decoded program, if there is one.
    """
    if entry.location is not None:
        tensor = _on_device(container, entry, linked, entry.location)
    else:
        tensor = _fake(entry, mode) if taken is None else taken
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
    """Return a weight as a view of the memory-mapped archive, without reading it."""
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


def described_facts(manifest: MethodManifest) -> ProgramFacts:
    """Return the metadata of a loaded program, so that saving it again writes the metadata too."""
    names = {each.name for each in fields(ProgramFacts)} & {each.name for each in fields(MethodManifest)}
    same = {name: getattr(manifest, name) for name in names - {"computed"}}
    unbound = tuple(UnboundConstant(**asdict(known)) for known in manifest.unbound_constants)
    return ProgramFacts(**same, unbound=unbound)
