"""Reports as data for other programs: the versioned formats that `docs/json.md` documents."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from json import dumps  # A model may replace them in `json`.
from typing import TYPE_CHECKING, Any

from fakexport.report.bench_report import BenchReport
from fakexport.report.plan_report import PlannedDevice, PlannedPoint, PlanReport
from fakexport.report.planned_costs import PlannedCosts
from fakexport.report.verdict import Report, TargetDifference, Verdict

if TYPE_CHECKING:
    from fakexport.archive import ArchiveDifference
    from fakexport.capture import Recovered
    from fakexport.report.comparison import Comparison, Place, TensorError
    from fakexport.weights import WeightFinding, WeightsReport

SCHEMA = "fakexport.check/1"
"""Name and version of the format. The version rises when a field changes its meaning or goes away."""


def json_text(data: Mapping[str, Any]) -> str:
    """Return plain data as JSON text in ASCII, indented by two, ending in one line end.

    Raises:
        ValueError: a number has no JSON: infinity, NaN.
    """
    return dumps(data, indent=2, allow_nan=False) + "\n"


def to_dict(report: Report) -> dict[str, Any]:
    """Return the report as dicts, lists, strings, numbers, booleans and None.

    Keys are in a fixed order, and no key is left out when it is empty. Times and memory are under
    `measured` alone: without this key, the same model and targets return the same data.

    Returns:
        A new dict that shares nothing with the report. `check.schema.json` is its JSON Schema.
    """
    return {
        "schema": SCHEMA,
        "source": report.source,
        "is_clean": report.is_clean,
        "versions": dict(report.versions),
        "targets": [_target(verdict) for verdict in report.verdicts],
        "differences": [_difference(difference) for difference in report.differences],
        "diagnostics": plain(report.diagnostics),
        "measured": [{"target": v.target.name, **plain(v.timings)} for v in report.verdicts],
    }


def _target(verdict: Verdict) -> dict[str, Any]:
    return {
        **plain(verdict.target),
        "is_exportable": verdict.is_exportable,
        "failed_stage": verdict.failed_stage,
        "notes": list(verdict.notes),
        "summary": plain(verdict.summary),
        "transfers": plain(verdict.transfers),
        "memory_left": plain(verdict.memory_left),
        "recovered": _recovered(verdict.recovered),
        "ranks": plain(verdict.ranks),
    }


def _recovered(recovered: Recovered | None) -> dict[str, Any] | None:
    if recovered is None:
        return None
    return {
        "names": list(recovered.names),
        "bytes": recovered.bytes,
        "unbound": [{"code": constant.code, **plain(constant)} for constant in recovered.unbound],
    }


def _difference(difference: TargetDifference) -> dict[str, Any]:
    return {"first": difference.first, "second": difference.second, **plain(difference.difference)}


def plain(value: Any) -> Any:
    """Return dataclasses as dicts of their fields, in their order; mappings and sequences likewise.

    An infinite distance, which JSON has no number for, is "inf".
    """
    if is_dataclass(value) and not isinstance(value, type):
        return {field.name: plain(getattr(value, field.name)) for field in fields(value)}
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in value]
    return "inf" if value == math.inf else value


WEIGHTS_SCHEMA = "fakexport.verify-weights/1"


def weights_to_dict(report: WeightsReport) -> dict[str, Any]:
    """Return every field as plain data; `weights.schema.json` is its JSON Schema."""
    return {
        "schema": WEIGHTS_SCHEMA,
        "source": report.source,
        "checkpoint": report.checkpoint,
        "is_bindable": report.is_bindable,
        "weights": report.weights,
        "entries": report.entries,
        "entry_bytes": report.entry_bytes,
        "converted": report.converted,
        "computed": list(report.computed),
        "findings": [_finding(finding) for finding in report.findings],
    }


def _finding(finding: WeightFinding) -> dict[str, Any]:
    diagnostic = finding.diagnostic
    return {
        "code": finding.code,
        "severity": diagnostic.severity,
        "message": diagnostic.message,
        "names": list(finding.names),
        "expected": finding.expected,
        "found": finding.found,
        "cause": finding.cause_text,
        "fix": finding.fix,
    }


DIFF_SCHEMA = "fakexport.diff/1"


def archive_difference_to_dict(found: ArchiveDifference) -> dict[str, Any]:
    """Return every field as plain data; `diff.schema.json` is its JSON Schema."""
    return {
        "schema": DIFF_SCHEMA,
        "is_same": found.is_same,
        "notes": list(found.notes),
        "program": {"first": found.path_a, "second": found.path_b, **plain(found.program)},
        "weights": plain(found.weights),
        "facts": plain(found.facts),
    }


BENCH_SCHEMA = "fakexport.bench/1"


def bench_to_dict(report: BenchReport) -> dict[str, Any]:
    """Return every field as plain data.

    What depends on the machine and the run is under `measured` alone. An infinite difference is "inf".
    """
    rows = plain(report.rows)
    measured = [{"mode": row["mode"], **row.pop("measures")} for row in rows]
    return {
        "schema": BENCH_SCHEMA,
        "source": report.source,
        "inputs": list(report.inputs),
        "other_inputs": list(report.other_inputs),
        "assumptions": list(report.assumptions),
        "versions": dict(report.versions),
        "modes": rows,
        "measured": {
            "processor": report.processor,
            "threads": report.threads,
            "modes": measured,
        },
    }


COMPARISON_SCHEMA = "fakexport.compare/1"


def comparison_to_dict(comparison: Comparison) -> dict[str, Any]:
    """Return every field as plain data. A distance without a reference is null, an infinite one "inf"."""
    return {
        "schema": COMPARISON_SCHEMA,
        "is_identical": comparison.is_identical,
        "is_equal": comparison.is_equal,
        "kernels": comparison.kernels,
        "unmatched": comparison.unmatched,
        "first_difference": _place(comparison.first_difference),
        "first_divergence": _place(comparison.first_divergence),
        "outputs": [{"name": output.name, **_error(output.error)} for output in comparison.outputs],
        "modules": plain(comparison.modules),
        "assumptions": list(comparison.assumptions),
    }


def _place(place: Place | None) -> dict[str, Any] | None:
    if place is None:
        return None
    return {
        "node": place.node,
        "operator": place.operator,
        "kernel": place.kernel,
        "eager_kernel": place.eager_kernel or place.kernel,
        "module": place.module_path,
        "path": None if place.span is None else place.span.path,
        "line": None if place.span is None else place.span.line,
        **_error(place.error),
    }


def _error(error: TensorError) -> dict[str, Any]:
    return {
        "is_equal": error.is_equal,
        "is_close": error.is_close,
        "difference": plain(error.difference),
        "error": plain(error.program),
        "eager_error": plain(error.eager),
        "tolerance": plain(error.tolerance),
    }


PLAN_SCHEMA = "fakexport.plan/1"


def plan_to_dict(report: PlanReport) -> dict[str, Any]:
    """Return the plan as dicts, lists, strings, numbers, booleans and None; sizes in bytes."""
    data = plain(report)
    del data["timeline"]  # A file of its own: `--timeline`.
    data["points"] = [_point(point) for point in report.points]
    return {"schema": PLAN_SCHEMA, **data}


def _point(point: PlannedPoint) -> dict[str, Any]:
    return {
        **plain(point),
        "fit": point.fit,
        "devices": [_device(device) for device in point.devices],
        "eager": [_device(device) for device in point.eager],
        "aoti": [_device(device) for device in point.aoti],
        "costs": None if point.costs is None else _costs(point.costs),
    }


def _costs(costs: PlannedCosts) -> dict[str, Any]:
    return {
        **plain(costs),
        "devices": [
            {**plain(d), "least_seconds": d.least_seconds, "flops_per_byte": d.flops_per_byte}
            for d in costs.devices
        ],
        "least_seconds": costs.least_seconds,
        "most_tokens_per_second": costs.most_tokens_per_second,
    }


def _device(device: PlannedDevice) -> dict[str, Any]:
    return {
        **plain(device),
        "total": plain(device.total),
        "headroom": plain(device.headroom),
        "fit": device.fit,
    }
