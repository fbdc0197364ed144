"""What an archive holds as data for other programs, and sums of its weights: see `docs/json.md`."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from fakexport.archive import DTYPE_BYTES
from fakexport.report.as_json import picked, plain

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from fakexport.archive import ArchiveDescription, MethodDescription, MethodManifest, TensorEntry

INSPECT_SCHEMA = "fakexport.inspect/2"
"""Name and version of the format. The version rises when a field changes its meaning or goes away."""

_FACTS = (
    *("versions", "source", "topology", "profiles", "device_map", "dtype", "dynamic_shapes"),
    *("library_modules", "skipped_checks"),
)


def archive_to_dict(found: ArchiveDescription) -> dict[str, Any]:
    """Return every field as plain data; `inspect.schema.json` is its JSON Schema."""
    manifest = found.manifest
    digests = {record.name: record.sha256 for record in manifest.records}
    whole, shared = WeightTotals.of(manifest.tensors), WeightTotals.of(manifest.shared_tensors)
    return {
        "schema": INSPECT_SCHEMA,
        **picked(found, "path", "file_bytes", "has_manifest", "notes"),
        "weights": whole.count,
        "weight_bytes": whole.bytes,
        "shared_weights": shared.count,
        "shared_weight_bytes": shared.bytes,
        "shared": [
            [{"method": method, "name": name} for method, name in weight] for weight in manifest.shared
        ],
        "methods": [_method(method, about) for method, about in found.methods.items()],
        "records": [
            {"name": name, "bytes": size, "sha256": digests.get(name)} for name, size in found.records.items()
        ],
    }


def _method(method: str, found: MethodDescription) -> dict[str, Any]:
    return {
        "method": method,
        **picked(found.manifest, *_FACTS),
        "program": plain(found.program),
        "weights": _weights(found.manifest),
        "constants": plain(found.constants),
        "records": list(found.records),
    }


def _weights(manifest: MethodManifest) -> dict[str, Any]:
    return {
        "kind": manifest.weights,
        **plain(WeightTotals.of(manifest.tensors)),
        "prefix": manifest.prefix and dict(zip(("checkpoint", "program"), manifest.prefix, strict=True)),
        "tensors": [_weight(tensor) for tensor in manifest.tensors],
    }


def _weight(tensor: TensorEntry) -> dict[str, Any]:
    return {
        **picked(tensor, "name", "aliases", "is_parameter", "dtype", "shape", "device"),
        "bytes": weight_bytes(tensor),
        "file": tensor.location.file if tensor.location else None,
    }


@dataclass(frozen=True)
class WeightTotals:
    """Number and bytes of weights, also by dtype and by device; one that has several names counts once."""

    count: int
    bytes: int
    by_dtype: Mapping[str, int]
    by_device: Mapping[str, int]

    @classmethod
    def of(cls, tensors: Iterable[TensorEntry]) -> WeightTotals:
        by_dtype: Counter[str] = Counter()
        by_device: Counter[str] = Counter()
        count = 0
        for tensor in tensors:
            count += 1
            by_dtype[tensor.dtype] += weight_bytes(tensor)
            by_device[tensor.device] += weight_bytes(tensor)
        by_name = (dict(sorted(sizes.items())) for sizes in (by_dtype, by_device))
        return cls(count, by_dtype.total(), *by_name)


def weight_bytes(tensor: TensorEntry) -> int:
    """Return bytes of the elements of one weight."""
    return math.prod(tensor.shape) * DTYPE_BYTES[tensor.dtype]
