"""Draw plans and benchmarks with matplotlib, and write a memory trace for Perfetto."""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Literal

from fakexport.report.bench_report import BenchReport, BenchRow
from fakexport.report.plan_report import PlannedDevice, PlannedStep, PlanReport
from fakexport.report.quantity import bytes_text, duration_text, plural

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

ChartFormat = Literal["png", "svg"]

# From bottom to top: memory that is in use during the whole call, then memory that is allocated and freed.
COLORS = {
    "weight": "#4477aa",
    "constant": "#66ccee",
    "gradient": "#ddaa33",
    "optimizer": "#997700",
    "state": "#228833",
    "input": "#ccbb44",
    "activation": "#ee6677",
    "temporary": "#bbbbbb",
    "output": "#aa3377",
}
# Without these settings, element IDs in an SVG would differ between runs.
_SETTINGS = {"svg.hashsalt": "fakexport", "svg.fonttype": "none", "font.size": 9.0}
_MOST_COLUMNS = 1500
_UNITS = {"GiB": 2**30, "MiB": 2**20, "KiB": 2**10, "B": 1}
SHOWN_ABOVE_PEAK = 2.0
_ROOM = 1.1


def render_plan_chart(report: PlanReport, *, format_: ChartFormat) -> bytes:
    """Draw memory use node by node: the bytes of each kind, the peak, and the device's total memory.

    The horizontal axis is the order of execution, not time. In a long program, several neighboring nodes
    share a column, which shows the node that uses the most memory.

    Returns:
        The content of the image file. The same version of matplotlib always draws the same bytes.
    Raises:
        ModuleNotFoundError: matplotlib is not installed.
    """
    from matplotlib import rc_context
    from matplotlib.figure import Figure

    point = report.points[0]
    columns = point.replayed
    with rc_context(_SETTINGS):
        figure = Figure(figsize=(11, 0.8 + 2.8 * len(columns)), layout="constrained")
        panels = figure.subplots(len(columns), 1, squeeze=False)
        for (axes,), (device, is_eager) in zip(panels, columns, strict=True):
            _draw_device(axes, device, report.steps_on(device.name, is_eager=is_eager), is_eager=is_eager)
        panels[-1][0].set_xlabel("nodes in the order of execution")
        figure.suptitle(f"{report.subject} on {report.target}: {report.execution}", parse_math=False)
        return _written(figure, format_)


def _written(figure: Figure, format_: ChartFormat) -> bytes:
    """Return the bytes of an image file. It contains no timestamp, so the bytes are reproducible."""
    written = io.BytesIO()
    metadata: dict[str, Any] = {"Date": None} if format_ == "svg" else {}
    figure.savefig(written, format=format_, metadata=metadata, dpi=150)
    return written.getvalue()


def _draw_device(axes: Axes, device: PlannedDevice, steps: Sequence[PlannedStep], *, is_eager: bool) -> None:
    """Draw one panel: memory per kind, the peak, and the device's total memory if the peak is near it."""
    columns = list(fullest_columns(steps))
    unit = next((name for name, size in _UNITS.items() if size <= device.tensor_bytes), "B")
    scale = _UNITS[unit]
    kinds = [kind for kind in COLORS if any(step.bytes_by_kind.get(kind) for _, step in columns)]
    if columns:
        # Each column ends where the next one begins. The last one ends at the right edge.
        ends = [*columns, (len(steps), columns[-1][1])]
        heights = [[step.bytes_by_kind.get(kind, 0) / scale for _, step in ends] for kind in kinds]
        places = [place for place, _ in ends]
        axes.stackplot(places, heights, labels=kinds, colors=[COLORS[kind] for kind in kinds], step="post")
        _mark_peak(axes, columns, scale)
    highest = device.tensor_bytes
    memory = device.memory_bytes
    where = " in eager mode" if is_eager else ""
    title = f"{device.name} {device.profile}{where}: {bytes_text(highest)} of tensors at the peak"
    if memory is not None:
        title += f", {bytes_text(memory)} of memory"
        if memory <= SHOWN_ABOVE_PEAK * highest:
            axes.axhline(memory / scale, color="#222222", linestyle=":", linewidth=1.0)
    axes.set_title(title, parse_math=False, loc="left")
    axes.set_ylabel(unit)
    axes.set_ylim(0, _ROOM * axes.get_ylim()[1])
    axes.margins(x=0)
    if kinds:
        axes.legend(loc="upper left", bbox_to_anchor=(1.0, 1.0), frameon=False)


def _mark_peak(axes: Axes, columns: Sequence[tuple[int, PlannedStep]], scale: int) -> None:
    place, step = max(columns, key=lambda column: held_bytes(column[1]))
    where = " in ".join(part for part in (step.peak.operator, step.peak.module_path) if part)
    axes.plot([place], [held_bytes(step) / scale], marker="v", color="#222222", clip_on=False)
    is_late = place > columns[-1][0] / 2
    axes.annotate(
        where,
        (place, held_bytes(step) / scale),
        xytext=(-6 if is_late else 6, 4),
        textcoords="offset points",
        ha="right" if is_late else "left",
        parse_math=False,
    )


def fullest_columns(
    steps: Sequence[PlannedStep], most: int = _MOST_COLUMNS
) -> Iterator[tuple[int, PlannedStep]]:
    """Group steps into at most `most` columns. Yield each column's start and its largest step."""
    width = -(-len(steps) // most) or 1
    for first in range(0, len(steps), width):
        yield first, max(steps[first : first + width], key=held_bytes)


def held_bytes(step: PlannedStep) -> int:
    return sum(step.bytes_by_kind.values())


_STEP_US = 10


def plan_trace(report: PlanReport) -> str:
    """Return the memory timeline as JSON: bytes per kind on each device, and the nodes that change them.

    The time axis is the order of execution: each node takes 10 us.

    Returns:
        Text in Chrome's Trace Event Format: `M` names a device, `C` is a counter, `X` is a node.
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


_BAR, _QUARTILES, _MISSING = "#4477aa", "#222222", "#aa3377"


def render_bench_chart(report: BenchReport, *, format_: ChartFormat) -> bytes:
    """Draw relative latency, load time, file size and memory, with a bar per mode and labels for failures.

    The same version of matplotlib always draws the same bytes for the same report.

    Raises:
        ModuleNotFoundError: matplotlib is not installed.
    """
    from matplotlib import rc_context
    from matplotlib.figure import Figure

    with rc_context(_SETTINGS):
        figure = Figure(figsize=(13, 1.6 + 0.36 * len(report.rows)), layout="constrained")
        latency, load, size, memory = figure.subplots(1, 4, sharey=True)
        _draw_bars(latency, report.rows, "latency, eager = 1", _median_ratio, "{:.2f}".format)
        _draw_quartiles(latency, report.rows)
        _draw_bars(load, report.rows, "load", lambda row: row.measures.load_s, duration_text)
        _draw_bars(
            size, report.rows, "files", lambda row: row.measures.size_bytes, lambda v: bytes_text(int(v))
        )
        _draw_bars(
            memory, report.rows, "memory", lambda row: row.measures.memory_bytes, lambda v: bytes_text(int(v))
        )
        labels = [row.mode + "\n(wrong outputs)" * (row.is_equal is False) for row in report.rows]
        latency.set_yticks(range(len(report.rows)), labels)
        latency.invert_yaxis()
        machine = ", ".join(
            (report.processor, plural(report.threads, "thread"), f"torch {report.versions['torch']}")
        )
        figure.suptitle(f"{report.source}\n{machine}", parse_math=False)
        return _written(figure, format_)


def _draw_bars(
    axes: Axes,
    rows: Sequence[BenchRow],
    title: str,
    value: Callable[[BenchRow], float | None],
    text: Callable[[float], str],
) -> None:
    """Draw one panel, with a bar and its value for each mode."""
    values = [value(row) for row in rows]
    axes.barh(range(len(rows)), [0 if found is None else found for found in values], color=_BAR, height=0.7)
    for place, (row, found) in enumerate(zip(rows, values, strict=True)):
        said, colour = (_absence(row), _MISSING) if found is None else (text(found), _QUARTILES)
        axes.annotate(
            said, (found or 0, place), xytext=(4, 0), textcoords="offset points", va="center", color=colour
        )
    axes.set_title(title)
    axes.set_xticks([])
    axes.set_xlim(0, 1.45 * max((found for found in values if found is not None), default=1.0) or 1.0)
    axes.spines[["top", "right", "bottom"]].set_visible(False)


def _draw_quartiles(axes: Axes, rows: Sequence[BenchRow]) -> None:
    """Draw the interquartile range of each mode, and a line at the latency of eager mode."""
    for place, row in enumerate(rows):
        if (ratio := row.measures.ratio) is not None:
            axes.plot([ratio.lower, ratio.upper], [place + 0.25] * 2, color=_QUARTILES, linewidth=1.5)
    axes.axvline(1.0, color=_QUARTILES, linewidth=0.8, linestyle=":")


def _median_ratio(row: BenchRow) -> float | None:
    return None if row.measures.ratio is None else row.measures.ratio.median


def _absence(row: BenchRow) -> str:
    if not row.is_captured:
        return "not captured"
    stopped = [failure.step for failure in row.failures if failure.step != "resize"]
    return f"fails: {stopped[0]}" if stopped else "none"
