"""What a plan holds node by node, as a picture: the bytes of each kind, stacked, one panel per device."""

from __future__ import annotations

import io
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from fakexport.report.bench_chart import ChartFormat
from fakexport.report.plan_report import PlannedDevice, PlannedStep, PlanReport
from fakexport.report.quantity import bytes_text

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_COLORS = {
    "weight": "#4477aa",
    "constant": "#66ccee",
    "state": "#228833",
    "input": "#ccbb44",
    "activation": "#ee6677",
    "temporary": "#bbbbbb",
    "output": "#aa3377",
}
# Without these an SVG would have other names in it each time.
_SETTINGS = {"svg.hashsalt": "fakexport", "svg.fonttype": "none", "font.size": 9.0}
_MOST_COLUMNS = 1500
_UNITS = {"GiB": 2**30, "MiB": 2**20, "KiB": 2**10, "B": 1}
_SHOWN_ABOVE_PEAK = 2.0
_ROOM = 1.1


def render_plan_chart(report: PlanReport, *, format_: ChartFormat) -> bytes:
    """Draw the timeline: what is held while each node runs, by kind, with the peak and the device's memory.

    The order of execution is the horizontal axis, and no time. In a long program neighboring nodes share a
    column, which shows the one that holds the most.

    Returns:
        The file; the same report returns the same bytes with the same matplotlib.
    Raises:
        ModuleNotFoundError: matplotlib is not installed.
    """
    from matplotlib import rc_context
    from matplotlib.figure import Figure

    point = report.points[0]
    columns = [*((device, False) for device in point.devices), *((device, True) for device in point.eager)]
    with rc_context(_SETTINGS):
        figure = Figure(figsize=(11, 0.8 + 2.8 * len(columns)), layout="constrained")
        panels = figure.subplots(len(columns), 1, squeeze=False)
        for (axes,), (device, is_eager) in zip(panels, columns, strict=True):
            _draw(axes, device, report.steps_on(device.name, is_eager=is_eager), is_eager=is_eager)
        panels[-1][0].set_xlabel("nodes in the order of execution")
        figure.suptitle(f"{report.subject} on {report.target}: {report.execution}", parse_math=False)
        written = io.BytesIO()
        metadata: dict[str, Any] = {"Date": None} if format_ == "svg" else {}
        figure.savefig(written, format=format_, metadata=metadata, dpi=150)
    return written.getvalue()


def _draw(axes: Axes, device: PlannedDevice, steps: Sequence[PlannedStep], *, is_eager: bool) -> None:
    """One panel: the stack, the peak, and the memory of the device where it is near."""
    columns = list(fullest_columns(steps))
    unit = next((name for name, size in _UNITS.items() if size <= device.tensor_bytes), "B")
    scale = _UNITS[unit]
    kinds = [kind for kind in _COLORS if any(step.bytes_by_kind.get(kind) for _, step in columns)]
    if columns:
        # Each column ends where the next one begins; the last one at the end.
        ends = [*columns, (len(steps), columns[-1][1])]
        heights = [[step.bytes_by_kind.get(kind, 0) / scale for _, step in ends] for kind in kinds]
        places = [place for place, _ in ends]
        axes.stackplot(places, heights, labels=kinds, colors=[_COLORS[kind] for kind in kinds], step="post")
        _mark_peak(axes, columns, scale)
    highest = device.tensor_bytes
    memory = device.memory_bytes
    where = " in eager mode" if is_eager else ""
    title = f"{device.name} {device.profile}{where}: {bytes_text(highest)} of tensors at the peak"
    if memory is not None:
        title += f", {bytes_text(memory)} of memory"
        if memory <= _SHOWN_ABOVE_PEAK * highest:
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
    """Yield the fullest of neighboring steps, with the position of the first of them; at most so many."""
    width = -(-len(steps) // most) or 1
    for first in range(0, len(steps), width):
        yield first, max(steps[first : first + width], key=held_bytes)


def held_bytes(step: PlannedStep) -> int:
    return sum(step.bytes_by_kind.values())
