"""What a plan holds node by node, as a trace that Perfetto and chrome://tracing open."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from fakexport.report.plan_report import PlanReport

_STEP_US = 10


def plan_trace(report: PlanReport) -> str:
    """Return the timeline as JSON: per device, a counter of bytes by kind and the nodes that change it.

    Time is the order of execution and not a duration: each node takes 10 us.

    Returns:
        Text in Chrome's Trace Event Format: `M` names a device, `C` counts, `X` is a node.
    """
    return json.dumps({"displayTimeUnit": "ms", "traceEvents": list(_events(report))}) + "\n"


def _events(report: PlanReport) -> Iterator[dict[str, Any]]:
    columns = list(dict.fromkeys((step.device, step.is_eager) for step in report.timeline))
    for number, (device, is_eager) in enumerate(columns):
        name = f"{device} in eager mode" if is_eager else device
        yield {"ph": "M", "pid": number, "tid": 0, "name": "process_name", "args": {"name": name}}
        steps = report.steps_on(device, is_eager=is_eager)
        kinds = list(dict.fromkeys(kind for step in steps for kind in step.bytes_by_kind))
        for index, step in enumerate(steps):
            place = {"pid": number, "tid": 0, "ts": index * _STEP_US}
            held = {kind: step.bytes_by_kind.get(kind, 0) for kind in kinds}
            yield {**place, "ph": "C", "name": "bytes", "args": held}
            where = {"node": step.peak.node, "module": step.peak.module_path, "line": step.peak.line}
            yield {**place, "ph": "X", "dur": _STEP_US, "name": step.peak.operator, "args": where}
