"""What a device holds node by node, as a picture of stacked areas."""

from __future__ import annotations

from collections.abc import Sequence

from fakexport.report.page.document import Area, Chart, Mark
from fakexport.report.plan_chart import fullest_columns, held_bytes
from fakexport.report.plan_report import PlannedDevice, PlannedStep
from fakexport.report.quantity import bytes_text

# From the bottom up: what is there all the time, then what comes and goes.
_KINDS = (
    *("weight", "constant", "gradient", "optimizer", "state"),
    *("input", "activation", "temporary", "output"),
)
_WIDTH, _HEIGHT, _ABOVE = 1000, 240, 24
_SHOWN_ABOVE_PEAK = 2.0


def timeline_chart(
    device: PlannedDevice, steps: Sequence[PlannedStep], *, is_eager: bool, most_columns: int
) -> Chart:
    """Return the picture of one device.

    Args:
        is_eager: Whether they are operators of eager mode.
        most_columns: Neighboring steps share a column, the fullest of them, where there are more.
    """
    columns = list(fullest_columns(steps, most_columns))
    place, fullest = max(columns, key=lambda column: held_bytes(column[1]))
    peak, memory = held_bytes(fullest), device.memory_bytes
    is_near = memory is not None and memory <= _SHOWN_ABOVE_PEAK * peak
    top = max(peak, memory if is_near and memory is not None else 0) or 1
    kinds = [kind for kind in _KINDS if any(step.bytes_by_kind.get(kind) for _, step in columns)]

    def y_of(size: int) -> float:
        return round(_ABOVE + (_HEIGHT - _ABOVE) * (1 - size / top), 1)

    def x_of(position: int) -> float:
        return round(_WIDTH * position / len(steps), 1)

    areas = []
    for above in range(len(kinds), 0, -1):
        heights = [sum(step.bytes_by_kind.get(kind, 0) for kind in kinds[:above]) for _, step in columns]
        outline = _outline([x_of(at) for at, _ in columns], [y_of(height) for height in heights])
        areas.append(Area(kinds[above - 1], kinds[above - 1], outline))
    where = " in ".join(part for part in (fullest.peak.operator, fullest.peak.module_path) if part)
    is_left = place > len(steps) / 2
    marks = [Mark(f"{bytes_text(peak)} at {where}", x_of(place), y_of(peak) - 4, is_left)]
    lines: list[float] = []
    if is_near and memory is not None:
        lines.append(y_of(memory))
        marks.append(
            Mark(f"memory {bytes_text(memory)}", 4 if is_left else _WIDTH - 4, y_of(memory) - 4, not is_left)
        )
    mode = " in eager mode" if is_eager else ""
    return Chart(
        f"Memory of {device.name} {device.profile}{mode}, over {len(steps):,} nodes in their order",
        f"Most is held at {where}: {bytes_text(peak)}"
        + ("" if memory is None else f", of {bytes_text(memory)} of memory"),
        _WIDTH,
        _HEIGHT,
        tuple(areas),
        tuple(lines),
        tuple(marks),
    )


def _outline(xs: Sequence[float], ys: Sequence[float]) -> str:
    """Return the path around everything below some steps; equal neighbors are one step."""
    path, before = [f"M0 {_HEIGHT}"], None
    for x, y in zip(xs, ys, strict=True):
        if y != before:
            path.append(f"H{x:g}V{y:g}")
        before = y
    return "".join([*path, f"H{_WIDTH}V{_HEIGHT}Z"])
