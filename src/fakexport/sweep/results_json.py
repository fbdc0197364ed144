"""The results of a sweep as data for other programs; `docs/json.md` documents it."""

from __future__ import annotations

import json
from typing import Any

from .findings import findings_of
from .results import NOT_RUN, CheckResults, SweepResults
from .run_file import STATUSES, SweepRecord

RESULTS_SCHEMA = "fakexport.sweep-report/1"
"""Name and version of the format. The version rises when a field changes its meaning or goes away."""


def results_text(results: SweepResults) -> str:
    """Return `results_to_dict` as JSON text in ASCII, with a line per check, ending in one line end."""
    data = results_to_dict(results)
    checks = data.pop("checks")
    head = json.dumps(data, indent=2, allow_nan=False).removesuffix("\n}")
    lines = (json.dumps(check, separators=(",", ":"), allow_nan=False) for check in checks)
    return f'{head},\n  "checks": [\n' + ",\n".join(lines) + "\n  ]\n}\n"


def results_to_dict(results: SweepResults) -> dict[str, Any]:
    """Return the results as dicts, lists, strings, numbers, booleans and None; the same for the same runs.

    `sweep.schema.json` is its JSON Schema.
    """
    return {
        "schema": RESULTS_SCHEMA,
        "total": len(results.checks),
        "runs": [_run(results, run, name) for run, name in enumerate(results.names)],
        "environments": [
            {"versions": dict(each.versions), "machine": each.machine} for each in results.environments
        ],
        "checks": [_check(results, check) for check in results.checks],
    }


def _run(results: SweepResults, run: int, name: str) -> dict[str, Any]:
    every = dict.fromkeys((*STATUSES, NOT_RUN), 0)
    return {
        "name": name,
        "counts": {**every, **results.counts(run)},
        "reasons": [
            {"status": status, "reason": reason, "count": count}
            for status, reason, count in results.reasons(run)
        ],
    }


def _check(results: SweepResults, check: CheckResults) -> dict[str, Any]:
    return {
        "command": check.command,
        "source": check.source,
        "options": check.options,
        "results": [None if record is None else _result(results, record) for record in check.records],
    }


def _result(results: SweepResults, record: SweepRecord) -> dict[str, Any]:
    return {
        "status": record.status,
        "reason": record.reason,
        "seconds": record.seconds,
        "peak_bytes": record.peak_bytes,
        "environment": results.environment(record),
        "codes": list(dict.fromkeys(finding.code for finding in findings_of(record))),
    }
