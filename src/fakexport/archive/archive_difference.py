"""Compare two archives: their programs, their weights and their metadata."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass

from fakexport._torch.operators.real_execution import real_execution
from fakexport.archive.weights import are_equal
from fakexport.emulation.fake import is_fake
from fakexport.exporting.program import ProgramDifference, diff

from .loading import LoadedArchive, load_archive
from .manifest import MethodManifest, TensorEntry
from .methods import methods_of

_FACTS = ("source", "topology", "dtype", "dynamic_shapes")


@dataclass(frozen=True)
class WeightDifference:
    """One property that differs in the same way for several weights.

    Args:
        field: `presence`, `dtype`, `shape`, `stride`, `device`, `tied` (all names of the weight) or `data`
            (the archives contain different data; a and b are empty).
        a: The property in the first archive, as text; "" if the first archive does not have the weight, or if
            `field` is `tied` and the weight is not tied there.
        b: The property in the second archive.
        names: The weights in the order of the first archive, followed by those that only the second archive
            has.
    """

    field: str
    a: str
    b: str
    names: tuple[str, ...]


@dataclass(frozen=True)
class FactDifference:
    """Metadata that differs between the archives. The programs may still be identical.

    Args:
        field: `source`, `topology`, `dtype`, `dynamic_shapes`, `weights` or the name of a package.
        a, b: The value in each archive; "" if there is no value.
    """

    field: str
    a: str
    b: str


@dataclass(frozen=True)
class ArchiveDifference:
    """The differences between the archives a and b.

    Args:
        path_a, path_b: Paths as the caller passed them.
        program: Differences between the programs.
        weights: Differences between the weights, including weights that the graph does not use.
        facts: Differences in source, target, versions, and whether weights are present.
        notes: Sentences about what could not be checked, each with the archive's path.
    """

    path_a: str
    path_b: str
    program: ProgramDifference
    weights: tuple[WeightDifference, ...]
    facts: tuple[FactDifference, ...]
    notes: tuple[str, ...]

    @property
    def is_same(self) -> bool:
        """Whether the programs and weights are the same. Differences in `facts` do not count."""
        return self.program.is_identical and not self.weights


def diff_archives(
    a: str | os.PathLike[str], b: str | os.PathLike[str], *, method: str | None = None, trust: bool = False
) -> ArchiveDifference:
    """Return how the second archive differs from the first. If both are bound, all weights are compared.

    Args:
        method: The method to compare; at least one of the archives must be a bundle that has it. If the other
            archive is not a bundle, its only program is compared.
        trust: As for `load`, which also documents the errors.
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
    """Return the method to load from each archive; None for an archive that is not a bundle."""
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
    """Map every name of a weight, including its aliases, to the weight's entry."""
    return {name: tensor for tensor in manifest.tensors for name in (tensor.name, *tensor.aliases)}


def _properties(tensor: TensorEntry) -> Iterator[tuple[str, str]]:
    yield "dtype", tensor.dtype
    yield "shape", str(list(tensor.shape))
    yield "stride", str(list(tensor.stride))
    yield "device", tensor.device
    yield "tied", ", ".join(sorted((tensor.name, *tensor.aliases))) if tensor.aliases else ""


def _has_other_data(a: LoadedArchive, b: LoadedArchive, name: str) -> bool:
    """Return whether a weight has equal shapes and dtypes in both archives, but different data."""
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
