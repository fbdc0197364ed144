"""The programs of an archive, by method name, and their descriptions."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from fakexport.container import ArchiveError, Container, is_sample_inputs, read_container
from fakexport.documents import collection_paused

from .described_container import MANIFEST, read_manifest
from .manifest import ALONE, METHOD_NAME, MOST_METHODS, Manifest, MethodManifest, Prefix
from .method_records import MethodRecords
from .stock_archive import stock_manifest

UNREAD_INPUTS = "the example inputs are pickled and were not read"


@dataclass(frozen=True)
class Methods:
    """What an archive records about its programs.

    Args:
        manifest: The manifest of the archive.
        has_manifest: Whether fakexport wrote it; else it is what the records show.
        notes: What is unknown for an archive without a manifest, as sentences.
    """

    manifest: Manifest
    has_manifest: bool
    notes: tuple[str, ...]

    @property
    def names(self) -> tuple[str, ...]:
        """The methods of a bundle; none for a program that was saved alone."""
        return tuple(self.manifest.methods) if self.manifest.is_bundle else ()

    def chosen(self, path: str | os.PathLike[str], method: str | None) -> str:
        """Return the method that a caller chose, or the only program of an archive.

        Raises:
            ArchiveError: as for `check_method`.
        """
        check_method(path, self.names, method)
        return ALONE if method is None else method

    def weights_of_others(self, methods: Sequence[str]) -> frozenset[str]:
        """Return the records with weights that only other methods have."""
        every = self.manifest.methods
        own = frozenset().union(*(every[method].weight_records for method in methods))
        return frozenset().union(*(about.weight_records for about in every.values())) - own


def check_method(path: str | os.PathLike[str], names: Sequence[str], method: str | None) -> None:
    """Refuse a missing method, and an unspecified one if there are several.

    Raises:
        ArchiveError: no method was chosen, or it does not exist.
    """
    listed = ", ".join(names)
    if not names and method not in (None, ALONE):
        raise ArchiveError(path, f"has one program and no method {method!r}")
    if names and method is None:
        raise ArchiveError(path, f"is a bundle of the methods {listed}: choose one (--method NAME)")
    if names and method not in names:
        raise ArchiveError(path, f"has no method {method!r}; there are {listed}")


@collection_paused()
def read_methods(container: Container) -> Methods:
    """Return the programs of an archive of fakexport or torch, from now on checked against its manifest.

    Raises:
        ArchiveError: as for `read_manifest`; a program that the manifest lacks; too much graph text.
    """
    if MANIFEST in container.entries:
        found = Methods(read_manifest(container), True, ())
    else:
        found = _stock(container)
    models = {name for name in container.names if name.startswith("models/")}
    described = {MethodRecords(method).model for method in found.manifest.methods}
    if different := sorted(models ^ described):
        known = "missing" if different[0] in described else "not a program of the manifest"
        raise ArchiveError(container.path, f"is {known}", different[0])
    if sum(map(container.size, models)) > container.limits.json_bytes:
        raise ArchiveError(container.path, f"the programs exceed {container.limits.json_bytes} bytes")
    return found


def methods_of(path: str | os.PathLike[str], *, trust: bool = False) -> tuple[str, ...]:
    """Return the methods of a bundle; none for an archive with one program. Only the manifest is read.

    Args:
        trust: For files that only torch can read, use the names of their records, and return none for a file
            that is refused nonetheless: opening it reports the reason.
    Raises:
        ArchiveError: the file is refused.
        OSError: it cannot be opened.
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


def stored_methods(container: Container) -> tuple[str, ...]:
    """Return the methods of a bundle by the names of their records; none for a program saved alone."""
    models = [name for name in container.names if name.startswith("models/") and name.endswith(".json")]
    if models in ([], [MethodRecords(ALONE).model]):
        return ()
    return tuple(name.removeprefix("models/").removesuffix(".json") for name in models)


def _unread(container: Container) -> Iterator[str]:
    if any(is_sample_inputs(name) and container.size(name) for name in container.names):
        yield UNREAD_INPUTS


def _stock(container: Container) -> Methods:
    """Return what torch wrote: one program with the name `model`, or several with any name."""
    manifests: dict[str, MethodManifest] = {}
    notes_of: dict[str, None] = {}
    for method in stored_methods(container) or (ALONE,):
        if not METHOD_NAME.fullmatch(method):
            record = MethodRecords(method).model
            raise ArchiveError(container.path, "a program whose name is not a valid method name", record)
        if len(manifests) == MOST_METHODS:
            raise ArchiveError(container.path, f"more than {MOST_METHODS} programs")
        manifests[method], notes = stock_manifest(container, MethodRecords(method))
        notes_of |= dict.fromkeys(notes)
    notes_of |= dict.fromkeys(_unread(container))
    return Methods(Manifest(methods=manifests), False, tuple(notes_of))


def made_up_prefixes(manifest: Manifest) -> dict[str, Prefix]:
    """Return prefixes for programs that torch wrote into one file, so that each program's names are its own.

    Equal names need not be the same weight.
    """
    return {method: (f"{method}.", "") for method in manifest.methods} if manifest.is_bundle else {}
