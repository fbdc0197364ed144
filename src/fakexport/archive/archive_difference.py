"""Compare two archives: their programs, their weights and their metadata."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from fakexport.exporting.interface import ProgramDifference
from fakexport.files.container import ArchiveError, faults_named, read_container
from fakexport.files.documents import Recipe, collection_paused, mapping

from .codec.node_count import node_count
from .codec.program_outline import outline
from .manifest import MethodManifest, TensorEntry
from .manifest_json import verify_records
from .methods import methods_of, read_methods
from .stored_tensor import MethodRecords

if TYPE_CHECKING:
    from .loading import LoadedArchive

_FACTS = ("source", "topology", "dtype", "dynamic_shapes")


@dataclass(frozen=True)
class WeightDifference:
    """One property that differs in the same way for several weights.

    Args:
        field: `presence`, `dtype`, `shape`, `stride`, `device`, `tied` (all names of the weight), `entries`
            (in archives without weights, the checkpoint entries that `bind` reads) or `data` (the archives
            contain different data; a and b are empty).
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

    Programs with equal records are the same, so they are not decoded, and torch is not imported.

    Args:
        method: The method to compare; at least one of the archives must be a bundle that has it. If the other
            archive is not a bundle, its only program is compared.
        trust: As for `load`, which also documents the errors.
    """
    paths = os.fspath(a), os.fspath(b)
    methods = _methods(paths, method, trust=trust)
    if not trust and methods[0] == methods[1] and (same := _of_equal_records(paths, methods[0])):
        return same
    from fakexport.exporting.program import diff

    from .loading import load_archive

    first, second = (
        load_archive(path, method=own, trust=trust) for path, own in zip(paths, methods, strict=True)
    )
    both = zip(paths, (first, second), strict=True)
    return ArchiveDifference(
        *paths,
        program=diff(first.program, second.program),
        weights=tuple(_weights(first, second)),
        facts=tuple(_facts(first.only, second.only)),
        notes=tuple(f"{path}: {note}" for path, loaded in both for note in loaded.notes),
    )


@collection_paused()
def _of_equal_records(paths: tuple[str, str], method: str | None) -> ArchiveDifference | None:
    """Return the difference between archives whose records are all equal, or None if it is not that simple.

    None also for archives that `load` could not load here, because it raises the error.
    """
    try:
        with read_container(paths[0]) as first, read_container(paths[1]) as second:
            methods, others = read_methods(first), read_methods(second)
            name = methods.chosen(paths[0], method)
            if not methods.has_manifest or methods.manifest.records != others.manifest.records:
                return None
            a, b = methods.manifest.methods[name], others.manifest.methods[name]
            if _without_facts(a) != _without_facts(b) or not _is_loaded_alike(a):
                return None
            for container in (first, second):
                verify_records(container)
            with faults_named(first.path, MethodRecords(name).model):
                document = first.json(MethodRecords(name).model)
                program = outline(document)
                module = mapping(document["graph_module"])
                count = node_count(module["graph"])
    except ArchiveError:
        return None
    if program.missing_operators or program.refused_operators or program.library_classes:
        return None
    same = ProgramDifference(True, True, node_count_a=count, node_count_b=count)
    return ArchiveDifference(*paths, program=same, weights=(), facts=tuple(_facts(a, b)), notes=())


def _is_loaded_alike(manifest: MethodManifest) -> bool:
    """Return whether every machine can load the weights, without other files."""
    is_inside = manifest.weights == "inside" and set(manifest.totals.by_device) <= {"cpu"}
    return manifest.weights == "none" or is_inside


def _without_facts(manifest: MethodManifest) -> MethodManifest:
    """Return the manifest without the metadata that does not count as a difference."""
    return replace(manifest, source="", topology=None, dtype=None, dynamic_shapes=None, versions={})


def _methods(paths: tuple[str, str], method: str | None, *, trust: bool) -> list[str | None]:
    """Return the method to load from each archive; None for an archive that is not a bundle."""
    if method is None:
        return [None, None]
    are_bundles = [bool(methods_of(path, trust=trust)) for path in paths]
    return [method if is_bundle or not any(are_bundles) else None for is_bundle in are_bundles]


def _weights(a: LoadedArchive, b: LoadedArchive) -> Iterator[WeightDifference]:
    groups: dict[tuple[str, str, str], list[str]] = {}
    of_a, of_b = _by_name(a.only), _by_name(b.only)
    are_unbound = a.only.weights == b.only.weights == "none"
    entries = [_entries(each.only) if are_unbound else {} for each in (a, b)]
    for name in dict.fromkeys([*of_a, *of_b]):
        for change in _changes(of_a.get(name), of_b.get(name)):
            groups.setdefault(change, []).append(name)
        if name not in of_a or name not in of_b:
            continue
        if (sources := [each.get(name, "") for each in entries])[0] != sources[1]:
            groups.setdefault(("entries", sources[0], sources[1]), []).append(name)
        if _has_other_data(a, b, name) or (are_unbound and _has_other_default(a, b, name)):
            groups.setdefault(("data", "", ""), []).append(name)
    for change, names in sorted(groups.items(), key=lambda group: group[0]):
        yield WeightDifference(*change, tuple(names))


def _entries(manifest: MethodManifest) -> dict[str, str]:
    """Map each weight that `bind` reads from entries with other names to these entries."""
    found: dict[str, list[str]] = {}
    for recipe in manifest.recipes:
        for name, index in recipe.weights:
            text = recipe.entries[index] if not recipe.steps else _computed(recipe, index)
            found.setdefault(name, []).append(text)
    return {name: " or ".join(sorted(texts)) for name, texts in found.items()}


def _computed(recipe: Recipe, index: int) -> str:
    first, *more = recipe.entries
    digest = hashlib.sha256(repr((recipe, index)).encode()).hexdigest()[:8]
    return f"{first}{f' and {len(more)} more' if more else ''} (conversion {digest})"


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
    from fakexport._torch.operators.real_execution import real_execution
    from fakexport.archive.weights import are_equal
    from fakexport.emulation.fake import is_fake

    one, other = a.program.state_dict[name], b.program.state_dict[name]
    if is_fake(one) or is_fake(other) or (one.shape, one.dtype) != (other.shape, other.dtype):
        return False
    with real_execution():
        return not are_equal(one.detach(), other.detach().to(one.device))


def _has_other_default(a: LoadedArchive, b: LoadedArchive, name: str) -> bool:
    """Return whether `bind` uses different values for a weight that a checkpoint lacks."""
    import torch

    from fakexport._torch.operators.real_execution import real_execution
    from fakexport.archive.weights import are_equal
    from fakexport.exporting.program import facts_of

    one, other = ((facts_of(each.program).computed or {}).get(name) for each in (a, b))
    if not isinstance(one, torch.Tensor) or not isinstance(other, torch.Tensor):
        return one is not other
    with real_execution():
        return (one.shape, one.dtype) != (other.shape, other.dtype) or not are_equal(one, other)


def _facts(a: MethodManifest, b: MethodManifest) -> Iterator[FactDifference]:
    yield from _fact("rank", _rank(a), _rank(b))
    for field in (*_FACTS, "weights"):
        yield from _fact(field, getattr(a, field), getattr(b, field))
    versions_a, versions_b = a.versions, b.versions
    for package in sorted(versions_a.keys() | versions_b.keys()):
        yield from _fact(package, versions_a.get(package), versions_b.get(package))


def _rank(manifest: MethodManifest) -> str:
    rank = manifest.parallel
    return "" if rank is None else f"{rank.rank} of {rank.ranks} ({rank.degrees})"


def _fact(field: str, a: str | None, b: str | None) -> Iterator[FactDifference]:
    if (a or "") != (b or ""):
        yield FactDifference(field, a or "", b or "")
