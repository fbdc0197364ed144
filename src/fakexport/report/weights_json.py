"""The verification of a checkpoint as data for other programs; `docs/json.md` documents it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fakexport.weights import WeightFinding, WeightsReport

WEIGHTS_SCHEMA = "fakexport.verify-weights/1"
"""Name and version of the format. The version rises when a field changes its meaning or goes away."""


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
