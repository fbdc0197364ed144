"""What an archive holds as data for other programs; `docs/json.md` documents it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from fakexport.report.archive_totals import WeightTotals, weight_bytes
from fakexport.report.as_json import plain

if TYPE_CHECKING:
    from fakexport.archive import ArchiveDescription, MethodDescription, MethodManifest, TensorEntry

INSPECT_SCHEMA = "fakexport.inspect/2"
"""Name and version of the format. The version rises when a field changes its meaning or goes away."""

_FACTS = (
    *("versions", "source", "topology", "profiles", "device_map", "dtype", "dynamic_shapes"),
    *("library_modules", "skipped_checks"),
)
_OF_TENSORS = ("name", "aliases", "is_parameter", "dtype", "shape", "device")


def archive_to_dict(found: ArchiveDescription) -> dict[str, Any]:
    """Return every field as plain data; `inspect.schema.json` is its JSON Schema."""
    manifest = found.manifest
    digests = {record.name: record.sha256 for record in manifest.records}
    whole, shared = WeightTotals.of(manifest.tensors), WeightTotals.of(manifest.shared_tensors)
    return {
        "schema": INSPECT_SCHEMA,
        "path": found.path,
        "file_bytes": found.file_bytes,
        "has_manifest": found.has_manifest,
        "notes": list(found.notes),
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
    manifest = found.manifest
    return {
        "method": method,
        **{name: plain(getattr(manifest, name)) for name in _FACTS},
        "program": plain(found.program),
        "weights": _weights(manifest),
        "constants": plain(found.constants),
        "records": list(found.records),
    }


def _weights(manifest: MethodManifest) -> dict[str, Any]:
    return {
        "kind": manifest.weights,
        **plain(WeightTotals.of(manifest.tensors)),
        "prefix": _prefix(manifest.prefix),
        "tensors": [_weight(tensor) for tensor in manifest.tensors],
    }


def _prefix(prefix: tuple[str, str] | None) -> dict[str, str] | None:
    return None if prefix is None else {"checkpoint": prefix[0], "program": prefix[1]}


def _weight(tensor: TensorEntry) -> dict[str, Any]:
    return {
        **{name: plain(getattr(tensor, name)) for name in _OF_TENSORS},
        "bytes": weight_bytes(tensor),
        "file": tensor.location.file if tensor.location else None,
    }
