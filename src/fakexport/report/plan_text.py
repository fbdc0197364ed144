"""Render the results of `fakexport plan` as short text."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from fakexport.files import escaped
from fakexport.report.plan_report import (
    Greatest,
    Interval,
    Machine,
    PlannedDevice,
    PlannedPeak,
    PlannedPoint,
    PlannedTensor,
    PlanReport,
    worst_fit,
)
from fakexport.report.planned_costs import cost_lines, module_lines
from fakexport.report.quantity import bytes_text
from fakexport.report.table import layout, wide_layout, wrapped

_SHOWN_TENSORS = 10


def render_plan(report: PlanReport, *, width: int = 100) -> str:
    """Return the plan: a table of bytes per device, the peaks, and what fits."""
    lines = wrapped(plan_title(report), width)
    for point in report.points:
        is_only = len(report.points) == 1
        lines += ["", *_point(point, width, is_only=is_only, has_phases=report.workload == "train")]
    if report.greatest:
        lines += ["", *(line for found in report.greatest for line in wrapped(greatest_text(found), width))]
    if report.machines:
        lines += ["", *_machines(report.machines)]
    if report.modules:
        lines += ["", *module_lines(report.modules, width=width)]
    for note in plan_notes(report):
        lines += wrapped(note, width, first="note: ", later="      ")
    return "\n".join(lines) + "\n"


def plan_notes(report: PlanReport) -> tuple[str, ...]:
    """Return what a plan does not include and what it assumes, each once."""
    uncounted = dict.fromkeys(text for point in report.points if point.costs for text in point.costs.left_out)
    return (*(f"not included: {text}" for text in (*report.left_out, *uncounted)), *report.assumptions)


def plan_title(report: PlanReport) -> str:
    parts = [report.workload or "program", report.dtype]
    parts += [f"device map {report.device_map}"] if report.device_map else []
    execution = report.execution.replace(" and ", " and of ")
    return f"{report.subject} on {report.target}: {', '.join(parts)}; peak of {execution}"


def sizes_text(point: PlannedPoint) -> str:
    sizes = [] if point.batch is None else [f"batch {point.batch:,}"]
    sizes += [] if point.context is None else [f"context {point.context:,}"]
    sizes += [f"{name} = {size:,}" for name, size in point.as_in_example.items()]
    return ", ".join(sizes) or "sizes of the program"


def _point(point: PlannedPoint, width: int, *, is_only: bool, has_phases: bool) -> Iterator[str]:
    yield from wrapped(f"{sizes_text(point)}: {verdict_text(point)}", width)
    table = memory_table(point)
    yield from wide_layout(table, width=width, right=range(1, len(table[0])), indent="  ")
    yield from (line for text in state_lines(point) for line in wrapped(text, width))
    for role, size in point.growth.items():
        yield (
            f"one more {_UNITS[role]} adds {bytes_text(size)} at the peak"
            if size > 0
            else f"a larger {role} adds no memory"
        )
    if point.costs is not None:
        yield from (line for text in cost_lines(point.costs) for line in wrapped(text, width))
    yield from (line for text in idle_lines(point) for line in wrapped(text, width))
    for name, devices in point.executions if is_only else ():
        fullest = _fullest(devices)
        where = _WHERE.get(name, "")
        if fullest is not None and fullest.peak is not None:
            phase = f" ({fullest.peak.node})" if has_phases else ""
            yield from wrapped(peak_text(fullest.peak, fullest.name + where, phase), width)
            rows = [_tensor_row(tensor) for tensor in fullest.largest[:_SHOWN_TENSORS]]
            yield from layout(rows, right=[0], indent="  ")


_UNITS = {"batch": "sequence or image", "context": "token"}


def state_lines(point: PlannedPoint) -> Iterator[str]:
    """Yield the size of the cache and state after the call, and each assumed size of a sliding window."""
    total = sum(device.state_after for device in point.devices)
    if total:
        per = f", {bytes_text(total // point.batch)} per sequence" if point.batch else ""
        yield f"cache and state after the call: {bytes_text(total)}{per}"
    for size in sorted(set(point.windows.values())):
        names = [name for name, own in point.windows.items() if own == size]
        more = f" and {len(names) - 1} more" if len(names) > 1 else ""
        window = f"a sliding window of {size:,} tokens, as in the example inputs"
        yield f"{names[0]}{more} {'are' if more else 'is'} assumed to be {window}"


def idle_lines(point: PlannedPoint) -> Iterator[str]:
    """Yield the share of the time in which the devices of pipeline stages wait for each other."""
    if shares := point.idle_shares:
        (first, share), *others = shares.items()
        more = "".join(f", {other:.0%} with {count}" for count, other in others)
        yield (
            f"if each stage takes its least time, devices wait for {share:.0%} of the time with {first} "
            f"microbatch of these sizes{more} (GPipe, 1F1B)"
        )


def _fullest(devices: Sequence[PlannedDevice]) -> PlannedDevice | None:
    def load(device: PlannedDevice) -> tuple[float, int]:
        total = device.total.upper
        return (total / device.memory_bytes if device.memory_bytes else 0.0), total

    return max(devices, key=load, default=None)


_WHERE = {"eager mode": " in eager mode", "AOTInductor": " with AOTInductor"}


def verdict_text(point: PlannedPoint) -> str:
    if not (point.eager or point.aoti) or point.fit == "unknown":
        return fit_text(point.devices)
    named = (("the program" if name == "module()" else name, own) for name, own in point.executions)
    return "; ".join(f"{name} {fit_text(devices)}" for name, devices in named)


def fit_text(devices: Sequence[PlannedDevice]) -> str:
    fit = worst_fit(devices)
    worst = [device for device in devices if device.fit == fit]
    if fit == "unknown" or not worst:
        return "the memory of the devices is not known"
    if fit == "fits":
        known = [device.headroom for device in worst if device.headroom is not None]
        return f"fits, with at least {bytes_text(min(headroom.lower for headroom in known))} to spare"
    names = ", ".join(device.name for device in worst)
    missing = max(-device.headroom.lower for device in worst if device.headroom is not None)
    lacks = "lacks up to" if fit == "may not fit" else "lacks"
    return f"{fit}: {names} {lacks} {bytes_text(missing)}"


def memory_table(point: PlannedPoint) -> list[list[str]]:
    """Return a row per kind of memory, and a column per device of each execution."""
    devices = point.columns
    is_one = not (point.eager or point.aoti)
    rows = [
        [
            "",
            *(
                " ".join(([] if is_one else [name.removesuffix(" mode")]) + [device.name, device.profile])
                for name, own in point.executions
                for device in own
            ),
        ]
    ]
    rows += [
        [name, *(bytes_text(getattr(device, field)) for device in devices)]
        for name, field in _CLASSES
        if name in _ALWAYS or any(getattr(device, field) for device in devices)
    ]
    for name in dict.fromkeys(overhead.name for device in devices for overhead in device.overheads):
        found = [[o.bytes for o in device.overheads if o.name == name] for device in devices]
        rows.append([name, *(_interval(own[0]) if own else "" for own in found)])
    rows.append(["total", *(_interval(device.total) for device in devices)])
    memory = [device.memory_bytes for device in devices]
    rows.append(["memory", *("not known" if size is None else bytes_text(size) for size in memory)])
    return rows


_CLASSES = (
    ("weights", "weights"),
    ("constants", "constants"),
    ("cache and state", "state"),
    ("gradients", "gradients"),
    ("optimizer state", "optimizer"),
    ("inputs", "inputs"),
    ("activations", "activations"),
    ("temporaries", "temporaries"),
)
_ALWAYS = frozenset({"weights", "activations"})


def _interval(size: Interval) -> str:
    lower, upper = bytes_text(size.lower), bytes_text(size.upper)
    return lower if lower == upper else f"{lower} to {upper}"


def peak_text(peak: PlannedPeak, device: str, phase: str) -> str:
    at = f" at {peak.line}" if peak.line else ""
    module = f" in {peak.module_path}" if peak.module_path else ""
    return f"peak of {device}: {peak.operator}{phase}{module}{at}; largest at the peak:"


def _tensor_row(tensor: PlannedTensor) -> list[str]:
    shape = "" if tensor.shape is None else f"{tensor.dtype}[{','.join(map(str, tensor.shape))}]"
    times = "" if tensor.count == 1 else f"{tensor.count:,} x "
    place = tensor.module_path or tensor.name
    return [bytes_text(tensor.bytes), tensor.kind, escaped(place), times + shape, tensor.line or ""]


def greatest_text(found: Greatest) -> str:
    if found.size is None:
        return f"largest {found.role}: none fits; {found.device} runs out of memory"
    why = (
        "the program accepts no larger size"
        if found.limit == "range"
        else f"with a larger one, {found.device} runs out of memory"
    )
    surely = "" if found.fits_surely == found.size else f" (certain up to {found.fits_surely or 0:,})"
    return f"largest {found.role}: {found.size:,}{surely}; {why}"


def _machines(machines: Sequence[Machine]) -> list[str]:
    rows = [["fits on", "to spare", "placement"]]
    for machine in machines:
        if machine.count is not None and machine.headroom is not None:
            name = machine.profile if machine.count == 1 else f"{machine.count}x{machine.profile}"
            rows.append([name, bytes_text(machine.headroom.lower), machine.device_map or "one device"])
    lacking = [machine.profile for machine in machines if machine.count is None]
    lines = layout(rows, right=[1]) if len(rows) > 1 else []
    if lacking:
        lines.append(f"too little memory with every tested number of devices: {', '.join(lacking)}")
    return lines
