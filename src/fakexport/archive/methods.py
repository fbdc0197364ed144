"""The programs of an archive by method name, and their metadata."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from fakexport.files.container import ArchiveError, Container, is_sample_inputs, read_container
from fakexport.files.documents import collection_paused

from .manifest import ALONE, METHOD_NAME, MOST_METHODS, Manifest, MethodManifest, Prefix
from .manifest_json import MANIFEST, read_manifest
from .stock_archive import stock_manifest
from .stored_tensor import MethodRecords

UNREAD_INPUTS = "the example inputs are pickled and were not read"


@dataclass(frozen=True)
class Methods:
    """The metadata that an archive records about its programs.

    Args:
        manifest: The manifest of the archive.
        has_manifest: Whether fakexport wrote the manifest; otherwise it is derived from the records.
        notes: Sentences about what is unknown without a manifest.
    """

    manifest: Manifest
    has_manifest: bool
    notes: tuple[str, ...]

    @property
    def names(self) -> tuple[str, ...]:
        """Names of a bundle's methods; empty for a program that was saved alone."""
        return tuple(self.manifest.methods) if self.manifest.is_bundle else ()

    def chosen(self, path: str | os.PathLike[str], method: str | None) -> str:
        """Return the method that the caller chose, or the name of a single program."""
        check_method(path, self.names, method)
        return ALONE if method is None else method

    def weights_of_others(self, methods: Sequence[str]) -> frozenset[str]:
        """Return the names of the weight records that none of these methods uses."""
        every = self.manifest.methods
        own = frozenset().union(*(every[method].weight_records for method in methods))
        return frozenset().union(*(about.weight_records for about in every.values())) - own


def check_method(path: str | os.PathLike[str], names: Sequence[str], method: str | None) -> None:
    """Raise an error if the method does not exist, or if no method of a bundle was chosen."""
    listed = ", ".join(names)
    if not names and method not in (None, ALONE):
        raise ArchiveError(path, f"is not a bundle, so it has no method {method!r}")
    if names and method is None:
        raise ArchiveError(path, f"is a bundle of the methods {listed}: choose one (--method NAME)")
    if names and method not in names:
        raise ArchiveError(path, f"has no method {method!r}; the methods are {listed}")


@collection_paused()
def read_methods(container: Container) -> Methods:
    """Return the metadata of an archive's programs. Records that are read later are checked against it."""
    if MANIFEST in container.entries:
        found = Methods(read_manifest(container), True, ())
    else:
        found = _stock(container)
    models = {name for name in container.names if name.startswith("models/")}
    described = {MethodRecords(method).model for method in found.manifest.methods}
    if different := sorted(models ^ described):
        known = "missing" if different[0] in described else "not listed in the manifest"
        raise ArchiveError(container.path, f"is {known}", different[0])
    if sum(map(container.size, models)) > container.limits.json_bytes:
        raise ArchiveError(container.path, f"the programs exceed {container.limits.json_bytes} bytes")
    return found


def methods_of(path: str | os.PathLike[str], *, trust: bool = False) -> tuple[str, ...]:
    """Return the methods of a bundle; empty for an archive with one program. Only the manifest is read.

    With `trust`, the methods of a file that only torch can read are derived from the names of its records.
    The result is empty for a rejected file, because `load` raises the error later.
    """
    try:
        with read_container(path, trust=trust) as container:
            try:
                return read_methods(container).names
            except ArchiveError:
                if trust and MANIFEST not in container.entries:
                    return stored_methods(container)
                raise
    except ArchiveError:
        if trust:
            return ()
        raise


def method_manifests(path: str | os.PathLike[str], *, trust: bool = False) -> Mapping[str, MethodManifest]:
    """Return the descriptions of an archive's programs by method name. Only the manifest is read.

    With `trust`, the result is empty for a file that only torch can read, and for a rejected file, because
    `load` raises the error later.
    """
    try:
        with read_container(path, trust=trust) as container:
            return read_methods(container).manifest.methods
    except ArchiveError:
        if trust:
            return {}
        raise


def stored_methods(container: Container) -> tuple[str, ...]:
    """Return the methods of a bundle, from the names of its records; empty for a program saved alone."""
    models = [name for name in container.names if name.startswith("models/") and name.endswith(".json")]
    if models in ([], [MethodRecords(ALONE).model]):
        return ()
    return tuple(name.removeprefix("models/").removesuffix(".json") for name in models)


def _stock(container: Container) -> Methods:
    """Derive the manifest of an archive that torch wrote, with one program or several."""
    manifests: dict[str, MethodManifest] = {}
    notes_of: dict[str, None] = {}
    for method in stored_methods(container) or (ALONE,):
        if not METHOD_NAME.fullmatch(method):
            record = MethodRecords(method).model
            raise ArchiveError(container.path, "the name of the program is not a valid method name", record)
        if len(manifests) == MOST_METHODS:
            raise ArchiveError(container.path, f"there are more than {MOST_METHODS} programs")
        manifests[method], notes = stock_manifest(container, MethodRecords(method))
        notes_of |= dict.fromkeys(notes)
    if any(is_sample_inputs(name) and container.size(name) for name in container.names):
        notes_of[UNREAD_INPUTS] = None
    return Methods(Manifest(methods=manifests), False, tuple(notes_of))


def made_up_prefixes(manifest: Manifest) -> dict[str, Prefix]:
    """Return prefixes for a bundle that torch wrote, so that equal weight names do not count as shared."""
    return {method: (f"{method}.", "") for method in manifest.methods} if manifest.is_bundle else {}
