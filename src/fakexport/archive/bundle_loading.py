"""Loading all programs of a bundle."""

from __future__ import annotations

import os
from dataclasses import dataclass

from fakexport.program.origin import remember_prefix

from .bundle import Bundle
from .bundle_manifest import BundleManifest
from .container.reader import Container, read_container
from .described_container import verify_records
from .error import ArchiveError
from .loading import read_program
from .method_records import MethodRecords
from .methods import read_methods, weight_records
from .sharing import unify

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


def load_bundle(path: str | os.PathLike[str], *, check_weights: bool = True) -> Bundle:
    """The programs of a bundle, by method; `load` gives one of them.

    What several methods share is one tensor: it takes memory once, and what one writes into it the others
    see. See `load` for what is checked, and for what weights are before they are bound.

    Args:
        path: A `.pt2` file that `save_bundle` wrote; or `package_pt2` of torch, which shares nothing between
            its programs. Nothing in it may be pickled.
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
    return load_bundle_archive(path, check_weights=check_weights).bundle


def load_bundle_archive(path: str | os.PathLike[str], *, check_weights: bool = True) -> LoadedBundle:
    """As `load_bundle`, with what the archive says of the programs."""
    try:
        opened = read_container(path)
    except ArchiveError as error:
        if error.is_trust_missing:
            what = "only torch's load_pt2 reads such a bundle, and it runs what the record says"
            raise ArchiveError(path, what, error.where) from error
        raise
    with opened as container:
        methods = read_methods(container)
        manifest = methods.bundle
        weights = frozenset().union(*map(weight_records, manifest.methods.values()))
        verify_records(container, manifest, unread=frozenset() if check_weights else weights)
        bundle = _bundle(container, manifest, check_weights)
        for method, program in bundle.items():
            if (prefix := methods.prefix(method)) is not None:
                remember_prefix(program, prefix)
        return LoadedBundle(bundle, manifest, methods.notes)


def _bundle(container: Container, manifest: BundleManifest, check_weights: bool) -> Bundle:
    programs = {
        method: read_program(container, MethodRecords(method), about, check_weights=check_weights)
        for method, about in manifest.methods.items()
    }
    try:
        bundle = Bundle(programs, prefixes=manifest.prefixes, shared=manifest.shared)
    except ValueError as error:
        raise ArchiveError(container.path, str(error)) from error
    if set(map(frozenset, bundle.shared)) != set(map(frozenset, manifest.shared)):
        raise ArchiveError(container.path, "the manifest and the programs share other weights")
    unify(programs, bundle.shared)
    return bundle
