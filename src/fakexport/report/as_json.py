"""The report as data for other programs: the versioned format that `docs/json.md` documents."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from typing import TYPE_CHECKING, Any

from fakexport.report.verdict import Report, TargetDifference, Verdict

if TYPE_CHECKING:
    from fakexport.capture import Recovered

SCHEMA = "fakexport.check/1"
"""Name and version of the format. The version rises when a field changes its meaning or goes away."""


def json_text(data: Mapping[str, Any]) -> str:
    """Return plain data as JSON text in ASCII, indented by two, ending in one line end.

    Args:
        data: What `to_dict` or another function of its kind returned.
    Raises:
        ValueError: a number has no JSON: infinity, NaN.
    """
    return json.dumps(data, indent=2, allow_nan=False) + "\n"


def to_dict(report: Report) -> dict[str, Any]:
    """Return the report as dicts, lists, strings, numbers, booleans and None.

    Keys are in a fixed order, and no key is left out when it is empty. Times and memory are under
    `measured` alone: without this key, the same model and targets return the same data.

    Args:
        report: What the check found; programs are left out.
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
