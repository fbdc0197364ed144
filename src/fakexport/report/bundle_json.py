"""What a bundle holds as data for other programs; `docs/json.md` documents it."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from fakexport.report.archive_json import archive_to_dict
from fakexport.report.archive_totals import WeightTotals, shared_tensors

if TYPE_CHECKING:
    from fakexport.archive import BundleDescription

__all__ = ["INSPECT_BUNDLE_SCHEMA", "bundle_to_dict", "render_bundle_json"]

INSPECT_BUNDLE_SCHEMA = "fakexport.inspect-bundle/1"
"""Name and version of the format. The version rises when a field changes its meaning or goes away."""


def render_bundle_json(found: BundleDescription) -> str:
    """Returns the description as JSON text in ASCII, indented by two, ending in one line end."""
    return json.dumps(bundle_to_dict(found), indent=2) + "\n"


def bundle_to_dict(found: BundleDescription) -> dict[str, Any]:
    """Returns every field as plain data; `inspect_bundle.schema.json` is its JSON Schema."""
    manifest = found.manifest
    whole, shared = WeightTotals.of(manifest.tensors), WeightTotals.of(shared_tensors(manifest))
    return {
        "schema": INSPECT_BUNDLE_SCHEMA,
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
        "prefixes": [
            {"method": method, "checkpoint": outside, "program": inside}
            for method, (outside, inside) in manifest.prefixes.items()
        ],
        "methods": [
            {"method": method, "archive": archive_to_dict(about)} for method, about in found.methods.items()
        ],
    }
