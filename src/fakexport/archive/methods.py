"""The programs of an archive, by name, and what is said of each: one, or those of a bundle."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from fakexport.documents.collection_pause import collection_paused

from .bundle_manifest import METHOD_NAME, MOST_METHODS, BundleManifest
from .container.contents import is_sample_inputs
from .container.reader import Container, read_container
from .described_container import MANIFEST, read_manifest
from .error import ArchiveError
from .manifest import Manifest
from .method_records import MODEL, MethodRecords
from .stock_archive import stock_manifest

__all__ = [
    "NO_BUNDLE",
    "UNREAD_INPUTS",
    "Methods",
    "check_method",
    "methods_of",
    "read_methods",
    "stored_methods",
    "undescribed_bundle",
    "weight_records",
]

UNREAD_INPUTS = "the example inputs are pickled and were not read"
NO_BUNDLE = "has one program and is no bundle: `load` opens it"


@dataclass(frozen=True)
class Methods:
    """What an archive says of its programs.

    Args:
        path: The archive, as the caller named it.
        whole: The manifest of the archive; `BundleManifest` where it is a bundle.
        has_manifest: Whether fakexport wrote it; else `whole` is what the records show.
        notes: What nobody can know of an archive without a manifest, as sentences.
    """

    path: str
    whole: Manifest | BundleManifest
    has_manifest: bool
    notes: tuple[str, ...]

    @property
    def names(self) -> tuple[str, ...]:
        """The methods of a bundle; none for an archive with one program."""
        return tuple(self.whole.methods) if isinstance(self.whole, BundleManifest) else ()

    @property
    def bundle(self) -> BundleManifest:
        """The manifest of a bundle.

        Raises:
            ArchiveError: the archive has one program.
        """
        if isinstance(self.whole, Manifest):
            raise ArchiveError(self.path, NO_BUNDLE)
        return self.whole

    def manifest(self, method: str | None) -> Manifest:
        """What is said of one program, its prefix included.

        Raises:
            ArchiveError: a bundle, and no method or an unknown one is named; no bundle, and one is named.
        """
        check_method(self.path, self.names, method)
        if isinstance(self.whole, Manifest):
            return self.whole
        assert method is not None
        return replace(self.whole.methods[method], prefix=self.prefix(method))

    def prefix(self, method: str | None) -> tuple[str, str] | None:
        """How the names of a program's weights begin in the checkpoint and in the program, if not alike."""
        if isinstance(self.whole, Manifest):
            return self.whole.prefix
        # Those of an archive without a manifest are made up, see `_stock`.
        return self.whole.prefixes.get(method) if method is not None and self.has_manifest else None

    def weights_of_others(self, method: str | None) -> frozenset[str]:
        """The records with weights that only other methods than this one have."""
        if isinstance(self.whole, Manifest) or method is None:
            return frozenset()
        own = weight_records(self.whole.methods[method])
        return frozenset().union(*map(weight_records, self.whole.methods.values())) - own


def check_method(path: str | os.PathLike[str], names: Sequence[str], method: str | None) -> None:
    """Refuses a method that is not there, and none where there are several.

    Args:
        path: The archive.
        names: Its methods; none where it has one program.
        method: What the caller asks for.
    Raises:
        ArchiveError: as `Methods.manifest` says.
    """
    listed = ", ".join(names)
    if not names and method is not None:
        raise ArchiveError(path, f"has one program, and no methods such as {method!r}")
    if names and method is None:
        raise ArchiveError(path, f"is a bundle of the methods {listed}: name one (--method NAME)")
    if names and method not in names:
        raise ArchiveError(path, f"has no method {method!r}; there are {listed}")


def weight_records(manifest: Manifest) -> frozenset[str]:
    """The records with the bytes of a program's weights."""
    locations = (tensor.location for tensor in manifest.tensors if tensor.location)
    return frozenset(location.file for location in locations if not location.is_link)


@collection_paused()
def read_methods(container: Container) -> Methods:
    """The programs of an archive of fakexport or of torch; from now on its manifest is held against it.

    Raises:
        ArchiveError: as for `read_manifest`; a program that the manifest has not; more text of graphs than is
            read of one program.
    """
    if MANIFEST in container.entries:
        found = Methods(container.path, read_manifest(container), True, ())
    else:
        found = _stock(container)
    models = {name for name in container.names if name.startswith("models/")}
    described = {MethodRecords(method).model for method in found.names or ("model",)}
    if different := sorted(models ^ described):
        known = "missing" if different[0] in described else "no program of the manifest"
        raise ArchiveError(container.path, f"is {known}", different[0])
    if sum(map(container.size, models)) > container.limits.json_bytes:
        raise ArchiveError(container.path, f"the programs exceed {container.limits.json_bytes} bytes")
    return found


def methods_of(path: str | os.PathLike[str], *, trust: bool = False) -> tuple[str, ...]:
    """The methods of a bundle; none for an archive with one program. Only the manifest is read.

    Args:
        path: The `.pt2` file.
        trust: Takes what only torch can read at its records' names, and gives none for a file that is refused
            all the same: opening it tells what is wrong.
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
    """The methods by the names of their records; none where there is one program of the name `model`."""
    models = [name for name in container.names if name.startswith("models/") and name.endswith(".json")]
    if models in ([], [MODEL]):
        return ()
    return tuple(name.removeprefix("models/").removesuffix(".json") for name in models)


def _unread(container: Container) -> Iterator[str]:
    if any(is_sample_inputs(name) and container.size(name) for name in container.names):
        yield UNREAD_INPUTS


def _stock(container: Container) -> Methods:
    """What torch wrote: one program of the name `model`, or several of any name."""
    methods = stored_methods(container)
    if not methods:
        manifest, notes = stock_manifest(container, MethodRecords())
        return Methods(container.path, manifest, False, (*notes, *_unread(container)))
    manifests: dict[str, Manifest] = {}
    notes_of: dict[str, None] = {}
    for method in methods:
        if not METHOD_NAME.fullmatch(method):
            record = MethodRecords(method).model
            raise ArchiveError(container.path, "a program with a name that no method can have", record)
        if len(manifests) == MOST_METHODS:
            raise ArchiveError(container.path, f"more than {MOST_METHODS} programs")
        manifests[method], notes = stock_manifest(container, MethodRecords(method))
        notes_of |= dict.fromkeys(notes)
    notes_of |= dict.fromkeys(_unread(container))
    return Methods(container.path, undescribed_bundle(manifests), False, tuple(notes_of))


def undescribed_bundle(manifests: Mapping[str, Manifest]) -> BundleManifest:
    """What is said of programs that torch wrote into one file.

    Nothing tells that equal names stand for one weight, so that each program's are names of their own.
    """
    return BundleManifest(methods=manifests, prefixes={method: (f"{method}.", "") for method in manifests})
