"""What `fakexport plan` found, as data for other programs: the versioned format of `docs/json.md`."""

from __future__ import annotations

from typing import Any

from fakexport.report.as_json import plain
from fakexport.report.plan_report import PlannedDevice, PlannedPoint, PlanReport
from fakexport.report.planned_costs import PlannedCosts

PLAN_SCHEMA = "fakexport.plan/1"


def plan_to_dict(report: PlanReport) -> dict[str, Any]:
    """Return the plan as dicts, lists, strings, numbers, booleans and None; sizes in bytes.

    Args:
        report: What was found.
    Returns:
        A new dict. `plan.schema.json` is its JSON Schema.
    """
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
