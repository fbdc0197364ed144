"""Reports as data for other programs: the versioned formats that `docs/json.md` documents."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from json import dumps  # A model may replace them in `json`.
from typing import TYPE_CHECKING, Any

from fakexport.report.bench_report import BenchReport
from fakexport.report.plan_report import PlanReport
from fakexport.report.verdict import ProjectReport, Report, Verdict

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
        **picked(report, "source", "is_clean", "versions"),
        "targets": [_target(verdict) for verdict in report.verdicts],
        "differences": [
            {"first": each.first, "second": each.second, **plain(each.difference)}
            for each in report.differences
        ],
        "diagnostics": plain(report.diagnostics),
        "measured": [{"target": v.target.name, **plain(v.timings)} for v in report.verdicts],
    }


def _target(verdict: Verdict) -> dict[str, Any]:
    return {
        **plain(verdict.target),
        **picked(verdict, "is_exportable", "failed_stage", "notes", "summary", "transfers", "memory_left"),
        "recovered": None if verdict.recovered is None else _recovered(verdict.recovered),
        "ranks": plain(verdict.ranks),
    }


def _recovered(found: Recovered) -> dict[str, Any]:
    unbound = [{"code": constant.code, **plain(constant)} for constant in found.unbound]
    return {**picked(found, "names", "bytes"), "unbound": unbound}


PROJECT_SCHEMA = "fakexport.check-project/1"


def project_to_dict(report: ProjectReport) -> dict[str, Any]:
    """Return the reports as dicts, lists, strings, numbers, booleans and None."""
    return {
        "schema": PROJECT_SCHEMA,
        "is_clean": report.exit_code == 0,
        "reports": [to_dict(part) for part in report.reports],
        "refused": [{"source": source, "reason": reason} for source, reason in report.refused.items()],
    }


# By the class: what follows from the fields of a value and is in its data as well.
_PROPERTIES = {
    "PlannedPoint": ("fit",),
    "PlannedDevice": ("total", "headroom", "fit"),
    "PlannedCosts": ("least_seconds", "most_tokens_per_second"),
    "DeviceCost": ("least_seconds", "flops_per_byte"),
}


def picked(value: Any, *names: str) -> dict[str, Any]:
    """Return some attributes of a value as plain data, by their names."""
    return {name: plain(getattr(value, name)) for name in names}


def plain(value: Any) -> Any:
    """Return dataclasses as dicts of their fields, in their order; mappings and sequences likewise.

    An infinite distance, which JSON has no number for, is "inf".
    """
    if is_dataclass(value) and not isinstance(value, type):
        names = [field.name for field in fields(value)]
        return picked(value, *names, *_PROPERTIES.get(type(value).__name__, ()))
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
        **picked(report, "source", "checkpoint", "is_bindable", "weights", "entries", "entry_bytes"),
        **picked(report, "converted", "computed"),
        "findings": [_finding(finding) for finding in report.findings],
    }


def _finding(finding: WeightFinding) -> dict[str, Any]:
    return {
        **picked(finding.diagnostic, "code", "severity", "message"),
        **picked(finding, "names", "expected", "found"),
        "cause": finding.cause_text,
        "fix": finding.fix,
    }


DIFF_SCHEMA = "fakexport.diff/1"


def archive_difference_to_dict(found: ArchiveDifference) -> dict[str, Any]:
    """Return every field as plain data; `diff.schema.json` is its JSON Schema."""
    return {
        "schema": DIFF_SCHEMA,
        **picked(found, "is_same", "notes"),
        "program": {"first": found.path_a, "second": found.path_b, **plain(found.program)},
        **picked(found, "weights", "facts"),
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
        **picked(report, "source", "inputs", "other_inputs", "assumptions", "versions"),
        "modes": rows,
        "measured": {**picked(report, "processor", "threads"), "modes": measured},
    }


COMPARISON_SCHEMA = "fakexport.compare/1"


def comparison_to_dict(comparison: Comparison) -> dict[str, Any]:
    """Return every field as plain data. A distance without a reference is null, an infinite one "inf"."""
    return {
        "schema": COMPARISON_SCHEMA,
        **picked(comparison, "is_identical", "is_equal", "kernels", "unmatched"),
        "first_difference": _place(comparison.first_difference),
        "first_divergence": _place(comparison.first_divergence),
        "outputs": [{"name": output.name, **_error(output.error)} for output in comparison.outputs],
        **picked(comparison, "modules", "assumptions"),
    }


def _place(place: Place | None) -> dict[str, Any] | None:
    if place is None:
        return None
    return {
        **picked(place, "node", "operator", "kernel"),
        "eager_kernel": place.eager_kernel or place.kernel,
        "module": place.module_path,
        "path": None if place.span is None else place.span.path,
        "line": None if place.span is None else place.span.line,
        **_error(place.error),
    }


def _error(error: TensorError) -> dict[str, Any]:
    return {
        **picked(error, "is_equal", "is_close", "difference"),
        "error": plain(error.program),
        "eager_error": plain(error.eager),
        "tolerance": plain(error.tolerance),
    }


PLAN_SCHEMA = "fakexport.plan/1"


def plan_to_dict(report: PlanReport) -> dict[str, Any]:
    """Return the plan as dicts, lists, strings, numbers, booleans and None; sizes in bytes."""
    data = plain(report)
    del data["timeline"]  # A file of its own: `--timeline`.
    return {"schema": PLAN_SCHEMA, **data}
