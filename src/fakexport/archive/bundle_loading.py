"""Loading all programs of a bundle."""

from __future__ import annotations

import os
from dataclasses import dataclass

from fakexport.program import WeightlessProgram

from .bundle import Bundle
from .bundle_manifest import BundleManifest
from .container.reader import Container, read_container
from .described_container import MANIFEST, verify_records
from .error import ArchiveError
from .loading import read_program
from .method_records import MethodRecords
from .methods import NO_BUNDLE, Methods, read_methods, stored_methods, undescribed_bundle, weight_records
from .sharing import unify
from .stock_archive import is_left_to_torch
from .trusted_archive import TRUSTED, describe_trusted, load_all_with_torch

__all__ = ["LoadedBundle", "load_bundle", "load_bundle_archive"]


@dataclass(frozen=True)
class LoadedBundle:
    """An archive's programs and what it says of them.

    Args:
        bundle: The programs.
        manifest: As `LoadedArchive` has it of one program.
        notes: What could not be checked or is not there, as sentences.
    """

    bundle: Bundle
    manifest: BundleManifest
    notes: tuple[str, ...] = ()


def load_bundle(path: str | os.PathLike[str], *, trust: bool = False, check_weights: bool = True) -> Bundle:
    """The programs of a bundle, by method; `load` gives one of them.

    What several methods share is one tensor: it takes memory once, and what one writes into it the others
    see. See `load` for what is checked, and for what weights are before they are bound.

    Args:
        path: A `.pt2` file that `save_bundle` wrote; or `package_pt2` of torch, which shares nothing between
            its programs.
        trust: As for `load`: hands a file with pickled weights or constants to torch's `load_pt2`, which runs
            what it says. Pickled example inputs, which `package_pt2` writes, are never read.
        check_weights: As for `load`.
    Raises:
        ArchiveError: as for `load`; or the archive has one program and is no bundle.
        OSError: it cannot be opened.

    Example:
        >>> import torch
        >>> from fakexport.archive import save_bundle
        >>> from fakexport.capture import export
        >>> _ = save_bundle({"only": export(torch.nn.Linear(4, 2), (torch.zeros(3, 4),))}, "/tmp/one.pt2")
        >>> load_bundle("/tmp/one.pt2")
        Bundle(only; without weights, 0 weights shared)
    """
    return load_bundle_archive(path, trust=trust, check_weights=check_weights).bundle


def load_bundle_archive(
    path: str | os.PathLike[str], *, trust: bool = False, check_weights: bool = True
) -> LoadedBundle:
    """As `load_bundle`, with what the archive says of the programs."""
    try:
        with read_container(path) as container:
            return _loaded(container, check_weights)
    except ArchiveError as error:
        if trust and error.is_trust_missing:
            return _trusted(path, check_weights)
        raise


def _trusted(path: str | os.PathLike[str], check_weights: bool) -> LoadedBundle:
    """What only torch can read is left to torch, as `load` does it with one program."""
    try:
        opened = read_container(path, trust=True)
    except ArchiveError as error:
        if error.is_trust_missing:  # The layout before torch 2.8.
            raise ArchiveError(path, NO_BUNDLE) from error
        raise
    with opened as container:
        for name in container.names:
            container.verify(name)
        methods = stored_methods(container)
        records = map(MethodRecords, methods or [MethodRecords.method])
        if MANIFEST in container.entries or not is_left_to_torch(container, records):
            return _loaded(container, check_weights, trust=True)
    if not methods:
        raise ArchiveError(path, NO_BUNDLE)
    programs = {name: WeightlessProgram.of(found) for name, found in load_all_with_torch(path).items()}
    try:
        manifest = undescribed_bundle({name: describe_trusted(found) for name, found in programs.items()})
        return LoadedBundle(Bundle(programs, prefixes=manifest.prefixes), manifest, (TRUSTED,))
    except ValueError as error:
        raise ArchiveError(path, str(error)) from error


def _loaded(container: Container, check_weights: bool, *, trust: bool = False) -> LoadedBundle:
    methods = read_methods(container)
    manifest = methods.bundle
    weights = frozenset().union(*map(weight_records, manifest.methods.values()))
    verify_records(container, manifest, unread=frozenset() if check_weights else weights)
    return LoadedBundle(_bundle(container, methods, check_weights, trust=trust), manifest, methods.notes)


def _bundle(container: Container, methods: Methods, check_weights: bool, *, trust: bool) -> Bundle:
    manifest = methods.bundle
    programs = {
        method: read_program(
            container,
            MethodRecords(method),
            methods.manifest(method),
            check_weights=check_weights,
            trust=trust,
        )
        for method in manifest.methods
    }
    try:
        bundle = Bundle(programs, prefixes=manifest.prefixes, shared=manifest.shared)
    except ValueError as error:
        raise ArchiveError(container.path, str(error)) from error
    if set(map(frozenset, bundle.shared)) != set(map(frozenset, manifest.shared)):
        raise ArchiveError(container.path, "the manifest and the programs share other weights")
    unify(programs, bundle.shared)
    return bundle
