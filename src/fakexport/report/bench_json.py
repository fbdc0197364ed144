"""Ways to hand a model over, as data for other programs: the versioned format of `docs/json.md`."""

from __future__ import annotations

from typing import Any

from fakexport.report.as_json import plain
from fakexport.report.bench_report import BenchReport

BENCH_SCHEMA = "fakexport.bench/1"
"""Name and version of the format. The version rises when a field changes its meaning or goes away."""


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
