"""The programs of an archive, by name, and what is said of each: one, or those of a bundle."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, replace

from .bundle_manifest import METHOD_NAME, MOST_METHODS, BundleManifest
from .container.reader import Container, read_container
from .described_container import MANIFEST, read_manifest
from .error import ArchiveError
from .manifest import Manifest
from .method_records import MODEL, MethodRecords
from .stock_archive import stock_manifest

__all__ = ["Methods", "methods_of", "read_methods", "weight_records"]


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
            raise ArchiveError(self.path, "has one program and is no bundle: `load` opens it")
        return self.whole

    def manifest(self, method: str | None) -> Manifest:
        """What is said of one program, its prefix included.

        Raises:
            ArchiveError: a bundle, and no method or an unknown one is named; no bundle, and one is named.
        """
        if isinstance(self.whole, Manifest):
            if method is not None:
                raise ArchiveError(self.path, f"has one program, and no methods such as {method!r}")
            return self.whole
        listed = ", ".join(self.names)
        if method is None:
            raise ArchiveError(self.path, f"is a bundle of the methods {listed}: name one (--method NAME)")
        if method not in self.whole.methods:
            raise ArchiveError(self.path, f"has no method {method!r}; there are {listed}")
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


def weight_records(manifest: Manifest) -> frozenset[str]:
    """The records with the bytes of a program's weights."""
    locations = (tensor.location for tensor in manifest.tensors if tensor.location)
    return frozenset(location.file for location in locations if not location.is_link)


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
        trust: Gives none as well for what only torch can read, since it is no bundle then; opening it tells
            what is wrong, if something is.
    Raises:
        ArchiveError: the file is refused.
        OSError: it cannot be opened.
    """
    try:
        with read_container(path, trust=trust) as container:
            return read_methods(container).names
    except ArchiveError:
        if trust:
            return ()
        raise


def _stock(container: Container) -> Methods:
    """What torch wrote: one program of the name `model`, or several of any name."""
    models = [name for name in container.names if name.startswith("models/")]
    if models in ([], [MODEL]):
        manifest, notes = stock_manifest(container, MethodRecords())
        return Methods(container.path, manifest, False, notes)
    manifests: dict[str, Manifest] = {}
    notes_of: dict[str, None] = {}
    for name in models:
        method = name.removeprefix("models/").removesuffix(".json")
        if not METHOD_NAME.fullmatch(method):
            raise ArchiveError(container.path, "a program with a name that no method can have", name)
        if len(manifests) == MOST_METHODS:
            raise ArchiveError(container.path, f"more than {MOST_METHODS} programs")
        manifests[method], notes = stock_manifest(container, MethodRecords(method))
        notes_of |= dict.fromkeys(notes)
    # Nothing tells that equal names stand for one weight, so that each program's are names of their own.
    prefixes: Mapping[str, tuple[str, str]] = {method: (f"{method}.", "") for method in manifests}
    whole = BundleManifest(methods=manifests, prefixes=prefixes)
    return Methods(container.path, whole, False, tuple(notes_of))
