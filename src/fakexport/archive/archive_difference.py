"""How two archives differ: in their programs, their weights and their metadata."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass

from fakexport._torch.real_execution import real_execution
from fakexport.fake import is_fake
from fakexport.program import ProgramDifference, diff
from fakexport.weights import are_equal

from .loading import LoadedArchive, load_archive
from .manifest import MethodManifest, TensorEntry
from .methods import methods_of

_FACTS = ("source", "topology", "dtype", "dynamic_shapes")


@dataclass(frozen=True)
class WeightDifference:
    """One property in which weights differ in the same way.

    Args:
        field: `presence`, `dtype`, `shape`, `stride`, `device`, `tied` (all names of the weight) or `data`
            (where both archives have it; a and b are empty).
        a: The property in the first archive, as text; "" where it has no such weight, or it is not tied.
        b: The property in the second archive.
        names: The weights, in the order of the first archive, those that only the second has at the end.
    """

    field: str
    a: str
    b: str
    names: tuple[str, ...]


@dataclass(frozen=True)
class FactDifference:
    """Metadata that differs between the archives: for information, it does not make the programs differ."""

    field: str
    a: str
    b: str


@dataclass(frozen=True)
class ArchiveDifference:
    """What differs between the archives a and b.

    Args:
        path_a, path_b: As the caller named them.
        program: Differences between the programs.
        weights: Differences between the weights, whether the graph uses them or not.
        facts: Source, target, versions, and whether the weights are there.
        notes: What could not be checked, as sentences that name the archive.
    """

    path_a: str
    path_b: str
    program: ProgramDifference
    weights: tuple[WeightDifference, ...]
    facts: tuple[FactDifference, ...]
    notes: tuple[str, ...]

    @property
    def is_same(self) -> bool:
        """The same program for the same weights; `facts` do not count."""
        return self.program.is_identical and not self.weights


def diff_archives(
    a: str | os.PathLike[str], b: str | os.PathLike[str], *, method: str | None = None, trust: bool = False
) -> ArchiveDifference:
    """Return how the second archive differs from the first.

    Args:
        a, b: Paths of `.pt2` files. Where both are bound, the data of all weights is read and compared.
        method: The program to use from a bundle, or from both. At least one of the two must be a bundle.
        trust: As for `load`.
    Raises:
        ArchiveError, OSError: as for `load`.
    """
    paths = os.fspath(a), os.fspath(b)
    methods = _methods(paths, method, trust=trust)
    first, second = (
        load_archive(path, method=own, trust=trust) for path, own in zip(paths, methods, strict=True)
    )
    both = zip(paths, (first, second), strict=True)
    return ArchiveDifference(
        *paths,
        program=diff(first.program, second.program),
        weights=tuple(_weights(first, second)),
        facts=tuple(_facts(first, second)),
        notes=tuple(f"{path}: {note}" for path, loaded in both for note in loaded.notes),
    )


def _methods(paths: tuple[str, str], method: str | None, *, trust: bool) -> list[str | None]:
    """Return the method to load from each; a single program is compared with one program of a bundle."""
    if method is None:
        return [None, None]
    are_bundles = [bool(methods_of(path, trust=trust)) for path in paths]
    return [method if is_bundle or not any(are_bundles) else None for is_bundle in are_bundles]


def _weights(a: LoadedArchive, b: LoadedArchive) -> Iterator[WeightDifference]:
    groups: dict[tuple[str, str, str], list[str]] = {}
    of_a, of_b = _by_name(a.only), _by_name(b.only)
    for name in dict.fromkeys([*of_a, *of_b]):
        for change in _changes(of_a.get(name), of_b.get(name)):
            groups.setdefault(change, []).append(name)
        if name in of_a and name in of_b and _has_other_data(a, b, name):
            groups.setdefault(("data", "", ""), []).append(name)
    for change, names in sorted(groups.items(), key=lambda group: group[0]):
        yield WeightDifference(*change, tuple(names))


def _changes(a: TensorEntry | None, b: TensorEntry | None) -> Iterator[tuple[str, str, str]]:
    if a is None or b is None:
        yield "presence", "there" if a else "", "there" if b else ""
        return
    texts = zip(_properties(a), _properties(b), strict=True)
    yield from ((field, old, new) for (field, old), (_, new) in texts if old != new)


def _by_name(manifest: MethodManifest) -> dict[str, TensorEntry]:
    """Return every name of every weight."""
    return {name: tensor for tensor in manifest.tensors for name in (tensor.name, *tensor.aliases)}


def _properties(tensor: TensorEntry) -> Iterator[tuple[str, str]]:
    yield "dtype", tensor.dtype
    yield "shape", str(list(tensor.shape))
    yield "stride", str(list(tensor.stride))
    yield "device", tensor.device
    yield "tied", ", ".join(sorted((tensor.name, *tensor.aliases))) if tensor.aliases else ""


def _has_other_data(a: LoadedArchive, b: LoadedArchive, name: str) -> bool:
    """Return whether both have data for a weight of the same description, but different data."""
    one, other = a.program.state_dict[name], b.program.state_dict[name]
    if is_fake(one) or is_fake(other) or (one.shape, one.dtype) != (other.shape, other.dtype):
        return False
    with real_execution():
        return not are_equal(one.detach(), other.detach().to(one.device))


def _facts(a: LoadedArchive, b: LoadedArchive) -> Iterator[FactDifference]:
    yield from _fact("rank", *(_rank(archive.only) for archive in (a, b)))
    for field in (*_FACTS, "weights"):
        yield from _fact(field, getattr(a.only, field), getattr(b.only, field))
    versions_a, versions_b = a.only.versions, b.only.versions
    for package in sorted(versions_a.keys() | versions_b.keys()):
        yield from _fact(package, versions_a.get(package), versions_b.get(package))


def _rank(manifest: MethodManifest) -> str:
    rank = manifest.parallel
    return "" if rank is None else f"{rank.rank} of {rank.ranks} ({rank.degrees})"


def _fact(field: str, a: str | None, b: str | None) -> Iterator[FactDifference]:
    if (a or "") != (b or ""):
        yield FactDifference(field, a or "", b or "")
