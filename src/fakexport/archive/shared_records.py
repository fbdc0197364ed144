"""Records that several programs of one archive share: each is written once."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from fakexport.container import Content, Streamed

from .manifest import TensorEntry
from .payload import Payload
from .sharing import SharedWeight


def share_weights(weights: dict[str, Payload], shared: Iterable[SharedWeight]) -> None:
    """Replace the other methods' records of a shared weight with the first method's."""
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


def share_equal(constants: dict[str, Payload]) -> None:
    """Write constants that are equal in several methods once; each method reads its own.

    Equal constants of the same method keep their records: a record is a single tensor there.
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
    """Return the payload with references to other records; its own records of the old names are dropped."""
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
