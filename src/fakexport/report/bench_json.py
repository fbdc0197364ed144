"""Ways to hand a model over, as data for other programs: the versioned format of `docs/json.md`."""

from __future__ import annotations

import math
from typing import Any

from fakexport.report.as_json import plain
from fakexport.report.bench_report import BenchMeasures, BenchReport, BenchRow

__all__ = ["BENCH_SCHEMA", "bench_to_dict"]

BENCH_SCHEMA = "fakexport.bench/1"
"""Name and version of the format. The version rises when a field changes its meaning or goes away."""


def bench_to_dict(report: BenchReport) -> dict[str, Any]:
    """Return every field as plain data.

    What depends on the machine and the run is under `measured` alone. An infinite difference is "inf".
    """
    return {
        "schema": BENCH_SCHEMA,
        "source": report.source,
        "inputs": list(report.inputs),
        "other_inputs": list(report.other_inputs),
        "assumptions": list(report.assumptions),
        "versions": dict(report.versions),
        "modes": [_mode(row) for row in report.rows],
        "measured": {
            "processor": report.processor,
            "threads": report.threads,
            "modes": [{"mode": row.mode, **_measures(row.measures)} for row in report.rows],
        },
    }


def _mode(row: BenchRow) -> dict[str, Any]:
    fields = plain(row)
    del fields["measures"]
    found: dict[str, Any] = fields
    return found


def _measures(measures: BenchMeasures) -> dict[str, Any]:
    found: dict[str, Any] = plain(measures)
    if measures.difference is not None and math.isinf(measures.difference):
        found["difference"] = "inf"
    return found
