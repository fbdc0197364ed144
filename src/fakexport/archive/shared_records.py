"""The records of an archive's programs. What several programs share is stored once. Needs no torch."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from json import dumps  # A model may replace `json.dumps`.
from typing import Any

from fakexport.files.container import Content, content_pieces
from fakexport.files.documents import UnboundName

from .manifest import TensorEntry
from .shared_names import SharedWeight
from .stored_tensor import MethodRecords, apart

UNBOUND = "unbound__bind_the_weights_first_with_fakexport"
"""Used as the record name of a weight that is not in the archive, so that torch's error shows it."""

LINKED = "linked__load_this_archive_with_fakexport"
"""Used as the record name of a weight in a linked file, so that torch's error shows it."""

ABSENT = (UNBOUND, LINKED, f"tensor_{UNBOUND}")
"""Record names of weights, and then of constants, that are not in the archive."""


@dataclass(frozen=True)
class Payload:
    """The weights or the constants of a program, ready to be written.

    Args:
        config: torch's `PayloadConfig` as JSON: the record and layout of each tensor, in program order.
        records: Record name -> content. Tensors without data have no record.
        tensors: Entries of the manifest. Tied names share one entry.
        unbound: Constants without a value.
    """

    config: dict[str, Any]
    records: dict[str, Content]
    tensors: tuple[TensorEntry, ...] = ()
    unbound: tuple[UnboundName, ...] = ()


class ComputedRecords:
    """Records of computed weights for all programs of an archive. Equal values are stored once."""

    def __init__(self) -> None:
        self.records: dict[str, Content] = {}
        self._known: dict[str, str] = {}

    def add(self, values: Mapping[str, Content | None]) -> dict[str, str | None]:
        """Add a program's computed weights. Map each name to its record, or to None if it has no value."""
        return {name: None if value is None else self._record(value) for name, value in values.items()}

    def _record(self, content: Content) -> str:
        key = sha256_of(content_pieces(content))
        if key not in self._known:
            self._known[key] = f"extra/fakexport/computed_{len(self._known)}"
            self.records[self._known[key]] = content
        return self._known[key]


def method_records(
    names: MethodRecords, model: bytes, sample_inputs: bytes, weights: Payload, constants: Payload
) -> dict[str, Content]:
    """Return the records of one program, including its tensors."""
    return {
        names.model: model,
        _place(names.weights, weights): encoded({"config": weights.config}),
        _place(names.constants, constants): encoded({"config": constants.config}),
        names.sample_inputs: sample_inputs,
        **weights.records,
        **constants.records,
    }


def _place(config: str, payload: Payload) -> str:
    """Return the record name for a config: torch's name if the archive contains all its tensors."""
    is_whole = all(entry["path_name"] not in ABSENT for entry in payload.config.values())
    return config if is_whole else apart(config)


def encoded(value: object) -> bytes:
    """Encode JSON as torch's archives contain it."""
    return dumps(value, separators=(",", ":"), ensure_ascii=True).encode()


def share_records(
    weights: dict[str, Payload], constants: dict[str, Payload], shared: Iterable[SharedWeight]
) -> None:
    """Store what several methods share once: weights that are the same, and constants that are equal."""
    _share_weights(weights, shared)
    _share_equal(constants)


def _share_weights(weights: dict[str, Payload], shared: Iterable[SharedWeight]) -> None:
    """For each shared weight, make all methods refer to the record of the first method."""
    entries = {
        method: {tensor.name: tensor for tensor in payload.tensors} for method, payload in weights.items()
    }
    renamed: dict[str, dict[str, str]] = {method: {} for method in weights}
    for (first, name), *others in shared:
        one = entries[first].get(name)
        if one is None or one.location is None or one.location.is_link:
            continue  # A constant, a fake weight, or a weight in a linked file.
        for method, other in others:
            same = entries[method].get(other)  # None for a constant.
            if same is not None and same.location is not None:
                renamed[method][same.location.file] = one.location.file
    for method, names in renamed.items():
        weights[method] = _renamed(weights[method], names)


def _share_equal(constants: dict[str, Payload]) -> None:
    """Write equal constants of several methods once. Each method still gets its own tensor.

    Equal constants of the same method keep separate records, because they are separate tensors.
    """
    known: dict[str, list[str]] = {}
    for method, payload in constants.items():
        names: dict[str, str] = {}
        taken: Counter[str] = Counter()
        for name, content in payload.records.items():
            key = sha256_of(content_pieces(content))
            written = known.setdefault(key, [])
            if taken[key] < len(written):
                names[name] = written[taken[key]]
            else:
                written.append(name)
            taken[key] += 1
        constants[method] = _renamed(payload, names)


def sha256_of(pieces: Iterable[bytes | memoryview]) -> str:
    """Return the sha256 of content in pieces, in hex."""
    digest = hashlib.sha256()
    for piece in pieces:
        digest.update(piece)
    return digest.hexdigest()


def _renamed(payload: Payload, names: Mapping[str, str]) -> Payload:
    """Return the payload without the records in `names`. References to them use the new names."""
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
