"""HTML page for `fakexport plan`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from fakexport.report.charts import COLORS, SHOWN_ABOVE_PEAK, fullest_columns, held_bytes
from fakexport.report.page.document import (
    Area,
    Bar,
    Branch,
    Cell,
    Chart,
    Document,
    Facts,
    Items,
    Mark,
    Paragraph,
    Part,
    Row,
    Section,
    Table,
    Tone,
    Tree,
)
from fakexport.report.plan_report import (
    Fit,
    PlannedDevice,
    PlannedPoint,
    PlannedStep,
    PlannedTensor,
    PlanReport,
)
from fakexport.report.plan_text import (
    greatest_text,
    idle_lines,
    memory_table,
    peak_text,
    plan_notes,
    plan_title,
    sizes_text,
    state_lines,
    verdict_text,
)
from fakexport.report.planned_costs import PlannedModule, cost_lines, flops_text, named_modules
from fakexport.report.quantity import bytes_text, device_names

_TONES: dict[Fit, Tone | None] = {
    "fits": "good",
    "may not fit": "warn",
    "does not fit": "bad",
    "unknown": None,
}
_WORST: tuple[Fit, ...] = ("does not fit", "may not fit", "unknown", "fits")
_OPEN_LEVELS = 2
_MOST_CHARTS = 16
_MOST_COLUMNS = 1600
_LEAST_COLUMNS = 100


def plan_document(report: PlanReport) -> Document:
    """Return the page of a plan: what fits, the memory use node by node, and the costs."""
    found: list[Fit] = [point.fit for point in report.points]
    worst = min(found, key=_WORST.index)
    is_only = len(report.points) == 1
    points = plan_title(report) if is_only else f"{len(report.points)} sizes, the worst: {worst}"
    lead = f"{sizes_text(report.points[0])}: {verdict_text(report.points[0])}" if is_only else points
    return Document(
        report.subject, lead, _TONES[worst], tuple(_sections(report)), "fakexport plan --format json"
    )


def _sections(report: PlanReport) -> Iterator[Section]:
    yield Section("Sizes", (Paragraph(plan_title(report)), _sizes(report), *_answers(report)))
    yield Section("Memory timeline", tuple(_charts(report)))
    memory = [part for point in report.points for part in _memory(point)]
    yield Section("Memory per device", tuple(memory))
    peaks = (_largest(report, device, is_eager=is_eager) for device, is_eager in _columns(report))
    yield Section("Largest at the peak", tuple(table for table in peaks if table is not None))
    if report.modules:
        caption = (
            "Computation and memory reads of each module; identical modules share a line, with their sum. "
            "The bars are the parts of a whole call: FLOPs above, bytes read below."
        )
        yield Section("Modules", (Tree(caption, _branches(report.modules)),))
    notes = plan_notes(report)
    yield Section("Notes", (Items(notes),) if notes else ())
    yield Section("Versions", (Facts(tuple(report.versions.items())),) if report.versions else ())


def _sizes(report: PlanReport) -> Table:
    rows = []
    for point in report.points:
        most = max((device.total.upper for device in point.columns), default=0)
        costs = () if point.costs is None else cost_lines(point.costs)
        details = [*state_lines(point), *costs, *idle_lines(point)]
        cells = (Cell(point.fit, tone=_TONES[point.fit]), verdict_text(point), Cell(bytes_text(most), most))
        is_open = len(report.points) == 1
        rows.append(Row.of(sizes_text(point), *cells, details=map(Paragraph, details), is_open=is_open))
    columns = ("sizes", "fit", "verdict", "highest use of a device")
    return Table("One row per choice of sizes", columns, tuple(rows), ("fit",))


def _answers(report: PlanReport) -> Iterator[Part]:
    if report.greatest:
        yield Items(tuple(map(greatest_text, report.greatest)))
    if report.machines:
        rows = []
        for machine in report.machines:
            spare = None if machine.headroom is None else machine.headroom.lower
            name = machine.profile if machine.count in (None, 1) else f"{machine.count}x{machine.profile}"
            answer = Cell("does not fit", tone="bad") if machine.count is None else Cell("fits", tone="good")
            size = Cell("" if spare is None else bytes_text(spare), spare)
            placed = "" if machine.count is None else machine.device_map or "one device"
            rows.append(Row.of(name, answer, size, placed))
        columns = ("devices", "fit", "to spare", "placement")
        caption = "Smallest number of devices on which the model fits, for each profile"
        yield Table(caption, columns, tuple(rows), ("fit",))


def _memory(point: PlannedPoint) -> Iterator[Table]:
    (_, *devices), *rows = memory_table(point)
    yield Table(f"At {sizes_text(point)}", ("memory", *devices), tuple(Row.of(*row) for row in rows))


def _columns(report: PlanReport) -> list[tuple[PlannedDevice, bool]]:
    """Return the pairs (device, is_eager) of the first point, in descending order of their peak."""
    return sorted(report.points[0].replayed, key=lambda column: -column[0].tensor_bytes)


def _charts(report: PlanReport) -> Iterator[Chart]:
    drawn = [
        (device, is_eager, steps)
        for device, is_eager in _columns(report)
        if (steps := report.steps_on(device.name, is_eager=is_eager))
    ][:_MOST_CHARTS]
    most = max(_LEAST_COLUMNS, _MOST_COLUMNS // max(1, len(drawn)))
    for device, is_eager, steps in drawn:
        yield timeline_chart(device, steps, is_eager=is_eager, most_columns=most)


def _largest(report: PlanReport, device: PlannedDevice, *, is_eager: bool) -> Table | None:
    if device.peak is None or not device.largest:
        return None
    where = f"{device.name}{' in eager mode' if is_eager else ''}"
    phase = f" ({device.peak.node})" if report.workload == "train" else ""
    rows = tuple(map(_tensor, device.largest))
    caption = peak_text(device.peak, where, phase).removesuffix("; largest at the peak:")
    return Table(caption, ("what", "kind", "bytes", "tensor", "place"), rows, ("kind",))


def _tensor(tensor: PlannedTensor) -> Row:
    shape = "" if tensor.shape is None else f"{tensor.dtype}[{','.join(map(str, tensor.shape))}]"
    times = "" if tensor.count == 1 else f"{tensor.count:,} × "
    name = tensor.name if not tensor.module_path else f"{tensor.module_path}: {tensor.name}"
    size = Cell(bytes_text(tensor.bytes), tensor.bytes)
    return Row.of(name, tensor.kind, size, times + shape, tensor.line or "")


_WIDTH, _HEIGHT, _ABOVE = 1000, 240, 24


def timeline_chart(
    device: PlannedDevice, steps: Sequence[PlannedStep], *, is_eager: bool, most_columns: int
) -> Chart:
    """Return the memory chart of one device. If there are too many steps, neighbors share a column."""
    columns = list(fullest_columns(steps, most_columns))
    place, fullest = max(columns, key=lambda column: held_bytes(column[1]))
    peak, memory = held_bytes(fullest), device.memory_bytes
    is_near = memory is not None and memory <= SHOWN_ABOVE_PEAK * peak
    top = max(peak, memory if is_near and memory is not None else 0) or 1
    kinds = [kind for kind in COLORS if any(step.bytes_by_kind.get(kind) for _, step in columns)]

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
    marks = [Mark(f"peak {bytes_text(peak)}", x_of(place), y_of(peak) - 4, is_left)]
    lines: list[float] = []
    if is_near and memory is not None:
        lines.append(y_of(memory))
        marks.append(
            Mark(f"memory {bytes_text(memory)}", 4 if is_left else _WIDTH - 4, y_of(memory) - 4, not is_left)
        )
    mode = " in eager mode" if is_eager else ""
    return Chart(
        f"Memory of {device.name} {device.profile}{mode}, over {len(steps):,} nodes in the order "
        "of execution",
        f"The peak is {bytes_text(peak)} at {where}"
        + ("" if memory is None else f", of {bytes_text(memory)} of memory"),
        _WIDTH,
        _HEIGHT,
        tuple(areas),
        tuple(lines),
        tuple(marks),
    )


def _outline(xs: Sequence[float], ys: Sequence[float]) -> str:
    """Return the SVG path around the area below a step function. Equal neighboring steps are merged."""
    path, before = [f"M0 {_HEIGHT}"], None
    for x, y in zip(xs, ys, strict=True):
        if y != before:
            path.append(f"H{x:g}V{y:g}")
        before = y
    return "".join([*path, f"H{_WIDTH}V{_HEIGHT}Z"])


def _branches(modules: Sequence[PlannedModule]) -> tuple[Branch, ...]:
    """Return the modules of a plan as a tree. If identical modules are merged, the numbers are sums."""
    flops, read = (max((value(each) for each in modules), default=0) for value in (_flops, _read))
    rows = [
        (module.depth, _cost_branch(module, name, flops, read)) for module, name in named_modules(modules)
    ]
    return _nested(rows, 0, len(rows), 0)


def _nested(rows: Sequence[tuple[int, Branch]], start: int, end: int, level: int) -> tuple[Branch, ...]:
    """Convert rows to a tree: the children of a row are the deeper rows that directly follow it."""
    found = []
    while start < end:
        depth, branch = rows[start]
        after = next((at for at in range(start + 1, end) if rows[at][0] <= depth), end)
        below = _nested(rows, start + 1, after, level + 1)
        found.append(replace(branch, children=below, is_open=level < _OPEN_LEVELS))
        start = after
    return tuple(found)


def _flops(module: PlannedModule) -> int:
    return module.flops


def _read(module: PlannedModule) -> int:
    return module.read_bytes


def _cost_branch(module: PlannedModule, name: str, flops: int, read_bytes: int) -> Branch:
    """Return a module without its submodules. `flops` and `read_bytes` are those of a whole call."""
    facts = [f"{module.count:,} modules"] if module.count > 1 else []
    facts += [flops_text(module.flops), f"reads at least {bytes_text(module.read_bytes)}"]
    shares = (
        (module.flops / (flops or 1), "activation", "FLOPs"),
        (module.read_bytes / (read_bytes or 1), "weight", "bytes read"),
    )
    bars = tuple(Bar(share, color, f"{share:.1%} of the {what}") for share, color, what in shares)
    return Branch(name, (*facts, device_names(module.devices)), bars=bars)
