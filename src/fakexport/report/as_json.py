"""Convert reports to the versioned JSON formats that `docs/json.md` documents.

A dataclass becomes an object with all its fields, or with the members that `VIEWS` lists for it.
`tools/json_documents.py` generates the documentation and the JSON Schema from the same tables.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields, is_dataclass
from functools import cache
from json import dumps  # Bound at import, because a model may replace `json.dumps`.
from typing import Any

SCHEMAS = {
    "Report": "fakexport.check/1",
    "ProjectReport": "fakexport.check-project/1",
    "PlanReport": "fakexport.plan/1",
    "WeightsReport": "fakexport.verify-weights/1",
    "ArchiveDescription": "fakexport.inspect/2",
    "ArchiveDifference": "fakexport.diff/1",
    "BenchReport": "fakexport.bench/1",
    "Comparison": "fakexport.compare/1",
    "SweepReport": "fakexport.sweep-report/1",
}
"""Class name -> JSON format. The version increases when a field is removed or changes its meaning."""

VIEWS = {
    "Report": "source is_clean versions targets=verdicts differences diagnostics measured=verdicts:Measured",
    # Measurements differ between runs. They are a separate member, so that the other members of two reports
    # can be compared.
    "Measured": "target=target.name *timings",
    "Verdict": "*target is_exportable failed_stage notes summary transfers memory_left recovered ranks"
    " stages runtimes",
    "RuntimeVerdict": "runtime versions result rewrites fallbacks fallback_to notes codes",
    "TargetDifference": "first second *difference",
    "UnboundConstant": "code ...",
    "ProjectReport": "is_clean reports refused",
    "PlanReport": "subject target device_map workload execution dtype points greatest machines modules"
    " left_out assumptions versions",
    "PlannedPoint": "... fit",
    "PlannedDevice": "... total headroom fit",
    "PlannedCosts": "... least_seconds most_tokens_per_second",
    "DeviceCost": "... least_seconds flops_per_byte",
    "WeightsReport": "source checkpoint is_bindable weights entries entry_bytes converted computed findings",
    "WeightFinding": "code severity=diagnostic.severity message=diagnostic.message names expected found"
    " cause=cause_text fix",
    "ArchiveDescription": "path file_bytes has_manifest notes weights shared_weights shared=manifest.shared"
    " methods records sha256",
    "MethodDescription": "*manifest program constants records",
    "MethodManifest": "versions source topology profiles device_map dtype dynamic_shapes library_modules"
    " skipped_checks weights_kind=weights weights=totals prefix tensors",
    "TensorEntry": "name aliases is_parameter dtype shape device bytes file=location.file",
    "ArchiveDifference": "is_same notes path_a path_b program weights facts",
    "BenchReport": "source inputs other_inputs assumptions versions modes=rows measured=.:BenchMeasured",
    "BenchRow": "mode is_captured is_equal keeps_dynamic needs_code failures",
    "BenchMeasured": "processor threads modes=rows:ModeMeasured",
    "ModeMeasured": "mode *measures",
    "Comparison": "is_identical is_equal kernels unmatched first_difference first_divergence outputs modules"
    " assumptions",
    "TensorError": "... is_close",
    "SweepReport": "total ...",
    "SweepCheck": "command source options results",
    "SweepResult": "status reason seconds peak_bytes environment codes runtimes",
}
"""Name of a class or view -> members of its JSON object. A member is written as `key`, `key=attribute` or
`key=attribute:View`. `...` stands for all fields, and `*attribute` inlines the members of the attribute. The
attribute `.` is the object itself."""


@dataclass(frozen=True)
class Member:
    """A member of a JSON object.

    Args:
        key: The JSON key; "" if the members of the value are inlined into this object.
        path: Attribute names that lead from the Python object to the value.
        view: The key in `VIEWS` that is used for the value; None to use the name of the value's class.
    """

    key: str
    path: tuple[str, ...]
    view: str | None = None


@cache
def members(kind: Any, view: str) -> tuple[Member, ...]:
    """Return the members of a view, in order. If `VIEWS` has no such view, return all fields of the class."""
    return tuple(_members(kind, VIEWS.get(view, "...")))


def _members(kind: Any, words: str) -> Iterator[Member]:
    for word in words.split():
        if word == "...":
            yield from (Member(each.name, (each.name,)) for each in fields(kind))
        elif word.startswith("*"):
            yield Member("", (word[1:],))
        else:
            key, _, found = word.partition("=")
            attribute, _, view = (found or key).partition(":")
            yield Member(key, tuple(filter(None, attribute.split("."))), view or None)


def json_text(data: Mapping[str, Any]) -> str:
    """Return plain data as JSON text: ASCII, indented by two spaces, with a final newline.

    Raises:
        ValueError: a number is infinite or NaN, which JSON cannot represent.
    """
    return dumps(data, indent=2, allow_nan=False) + "\n"


def to_dict(report: Any) -> dict[str, Any]:
    """Convert a report to dicts, lists, strings, numbers, booleans and None.

    Keys have a fixed order. Keys with empty values are included.

    Returns:
        A new dict that shares no objects with the report. Its JSON Schema is `documents.schema.json`.
    """
    found: dict[str, Any] = plain(report)
    return found


def plain(value: Any, view: str | None = None) -> Any:
    """Convert dataclasses and mappings to dicts, and sequences to lists, recursively.

    Infinity, which JSON cannot represent, becomes the string "inf".
    """
    if is_dataclass(value) and not isinstance(value, type):
        return _object(value, view or type(value).__name__)
    if isinstance(value, Mapping):
        return {str(key): plain(item, view) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(item, view) for item in value]
    return "inf" if value == math.inf else value


def _object(value: Any, view: str) -> dict[str, Any]:
    found = {"schema": SCHEMAS[view]} if view in SCHEMAS else {}
    kind: Any = type(value)
    for member in members(kind, view):
        part = value
        for name in member.path:
            part = None if part is None else getattr(part, name)
        data = plain(part, member.view)
        found |= {member.key: data} if member.key else data
    return found
