"""Saving a bundle: its programs in one archive, with what they share written once."""

from __future__ import annotations

import hashlib
import os
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from torch.export import ExportedProgram

from fakexport.program.program_facts import facts_of
from fakexport.weights import Checkpoint

from .bundle import Bundle, Prefix
from .bundle_manifest import BundleManifest
from .container.writer import Content, Streamed
from .described_container import write_described
from .links import Links
from .manifest import Manifest, TensorEntry
from .method_records import MethodRecords
from .payload import Payload, constants_payload, weights_payload
from .saving import check_whole, described, program_records
from .sharing import SharedWeight
from .weights_left import warn_of_weights

__all__ = ["save_bundle"]


def save_bundle(
    programs: Mapping[str, ExportedProgram],
    path: str | os.PathLike[str],
    *,
    prefixes: Mapping[str, str | Prefix] | None = None,
    root: str | Path | None = None,
    link: Checkpoint | None = None,
) -> BundleManifest:
    """Writes programs that belong together as one `.pt2` archive: as a whole, or not at all.

    As `save` writes one program. A weight that several methods have is written once, and is one tensor again
    after `load_bundle`; equal constants are written once. An object of a C++ class that
    several methods had is one for each of them then. torch's `load_pt2` opens it once it is bound.

    Args:
        programs: A `Bundle`, or programs by method, of which one is made: `Bundle` says which of their
            weights are one.
        path: The file; one that is there is replaced.
        prefixes: As for `Bundle`. A `Bundle` brings its own.
        root, link: As for `save`.
    Returns:
        The manifest as written.
    Raises:
        ValueError, TypeError: as for `Bundle` and `save`; prefixes for a `Bundle`.
        FileWriteError: the file cannot be written; what was there before is there still.

    Example:
        >>> import torch
        >>> from fakexport.capture import export
        >>> model, row = torch.nn.Linear(4, 4), torch.zeros(1, 4)
        >>> programs = {"one": export(model, (row,)), "two": export(model, (row.repeat(2, 1),))}
        >>> save_bundle(programs, "/tmp/linear.pt2").shared
        ((('one', 'weight'), ('two', 'weight')), (('one', 'bias'), ('two', 'bias')))
    """
    if isinstance(programs, Bundle):
        if prefixes is not None:
            raise ValueError("the bundle has its prefixes: make another, `Bundle(bundle, prefixes=...)`")
        bundle = programs
    else:
        bundle = Bundle(programs, prefixes=prefixes)
    links = None if link is None else Links(link, path)
    records: dict[str, Content] = {}
    manifests: dict[str, Manifest] = {}
    for method, (weights, constants) in _payloads(bundle, links).items():
        program = bundle[method]
        records |= program_records(program, MethodRecords(method), weights, constants, root=root)
        left = facts_of(program).left_behind if all(e.location is None for e in weights.tensors) else ()
        warn_of_weights(f"{os.fspath(path)}, method {method},", left)
        manifests[method] = described(program, weights, constants, root=root)
    if link is not None and all(manifest.weights != "linked" for manifest in manifests.values()):
        raise ValueError(f"no weight can be linked: none lies in a safetensors file of {link.location}")
    manifest = BundleManifest(methods=manifests, prefixes=bundle.prefixes, shared=bundle.shared)
    return write_described(path, records, manifest)


def _payloads(bundle: Bundle, links: Links | None) -> dict[str, tuple[Payload, Payload]]:
    """By method, the weights and the constants, with a record in the first payload that has its content."""
    weights: dict[str, Payload] = {}
    constants: dict[str, Payload] = {}
    first_weight = first_constant = 0
    for method, program in bundle.items():
        weights[method] = weights_payload(program, links, first=first_weight)
        constants[method] = constants_payload(program, facts_of(program).unbound, first=first_constant)
        try:
            check_whole(weights[method], constants[method])
        except ValueError as error:
            raise ValueError(f"the method {method}: {error}") from None
        first_weight += len(program.state_dict)
        first_constant += len(program.constants)
    _share_weights(weights, bundle.shared)
    _share_equal(constants)
    return {method: (weights[method], constants[method]) for method in bundle}


def _share_weights(weights: dict[str, Payload], shared: Iterable[SharedWeight]) -> None:
    """Puts the first method's record of a shared weight in the place of the others'."""
    entries = {
        method: {tensor.name: tensor for tensor in payload.tensors} for method, payload in weights.items()
    }
    renamed: dict[str, dict[str, str]] = {method: {} for method in weights}
    for (first, name), *others in shared:
        one = entries[first].get(name)
        if one is None or one.location is None or one.location.is_link:
            continue  # A constant, a fake, or what lies in a file already.
        for method, other in others:
            location = entries[method][other].location
            if location is not None:
                renamed[method][location.file] = one.location.file
    for method, names in renamed.items():
        weights[method] = _renamed(weights[method], names)


def _share_equal(constants: dict[str, Payload]) -> None:
    """Writes constants that are equal in several methods once; each method reads its own.

    Equal ones of the same method keep their records: what lies in one record is one tensor there.
    """
    known: dict[tuple[int, bytes], list[str]] = {}
    for method, payload in constants.items():
        names: dict[str, str] = {}
        taken: Counter[tuple[int, bytes]] = Counter()
        for name, content in payload.records.items():
            key = _digest(content)
            written = known.setdefault(key, [])
            if taken[key] < len(written):
                names[name] = written[taken[key]]
            else:
                written.append(name)
            taken[key] += 1
        constants[method] = _renamed(payload, names)


def _digest(content: Content) -> tuple[int, bytes]:
    if isinstance(content, bytes):  # An object of a C++ class.
        return len(content), hashlib.sha256(content).digest()
    assert isinstance(content, Streamed)
    digest = hashlib.sha256()
    for piece in content.pieces:
        digest.update(piece)
    return content.length, digest.digest()


def _renamed(payload: Payload, names: Mapping[str, str]) -> Payload:
    """The payload that refers to other records; its own of the old names are left out."""
    plain = {old.rpartition("/")[2]: new.rpartition("/")[2] for old, new in names.items()}
    config: dict[str, Any] = {
        name: {**entry, "path_name": plain.get(entry["path_name"], entry["path_name"])}
        for name, entry in payload.config.items()
    }
    tensors = tuple(_relocated(tensor, names) for tensor in payload.tensors)
    records = {name: content for name, content in payload.records.items() if name not in names}
    return replace(payload, config=config, records=records, tensors=tensors)


def _relocated(tensor: TensorEntry, names: Mapping[str, str]) -> TensorEntry:
    if tensor.location is None or tensor.location.file not in names:
        return tensor
    return replace(tensor, location=replace(tensor.location, file=names[tensor.location.file]))
