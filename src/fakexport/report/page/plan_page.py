"""What `fakexport plan` found, as a page."""

from __future__ import annotations

from collections.abc import Iterator

from fakexport.report.cost_text import cost_lines
from fakexport.report.page.document import (
    Cell,
    Chart,
    Column,
    Document,
    Facts,
    Items,
    Paragraph,
    Part,
    Row,
    Section,
    Table,
    Tone,
    Tree,
)
from fakexport.report.page.module_tree import cost_branches
from fakexport.report.page.timeline_chart import timeline_chart
from fakexport.report.plan_report import Fit, PlannedDevice, PlannedPoint, PlannedTensor, PlanReport
from fakexport.report.plan_text import (
    greatest_text,
    memory_table,
    peak_text,
    plan_title,
    sizes_text,
    state_lines,
    verdict_text,
)
from fakexport.report.quantity import bytes_text

_TONES: dict[Fit, Tone | None] = {
    "fits": "good",
    "may not fit": "warn",
    "does not fit": "bad",
    "unknown": None,
}
_WORST: tuple[Fit, ...] = ("does not fit", "may not fit", "unknown", "fits")
_MOST_CHARTS = 16
_MOST_COLUMNS = 1600
_LEAST_COLUMNS = 100


def plan_document(report: PlanReport) -> Document:
    """Return the page of a plan: what fits, what is held where and when, and what it costs."""
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
            "What each module computes and reads; equal blocks are one line, with the sum of all of them"
        )
        yield Section("Modules", (Tree(caption, cost_branches(report.modules)),))
    uncounted = [text for point in report.points if point.costs for text in point.costs.left_out]
    notes = (
        *(f"left out: {text}" for text in (*report.left_out, *dict.fromkeys(uncounted))),
        *report.assumptions,
    )
    yield Section("Notes", (Items(notes),) if notes else ())
    yield Section("Versions", (Facts(tuple(report.versions.items())),) if report.versions else ())


def _sizes(report: PlanReport) -> Table:
    columns = (Column("sizes"), Column("fit", is_choice=True), Column("verdict"), Column("most on a device"))
    rows = []
    for point in report.points:
        most = max((device.total.upper for device in point.columns), default=0)
        details = tuple(Paragraph(text) for text in state_lines(point))
        details += () if point.costs is None else tuple(Paragraph(text) for text in cost_lines(point.costs))
        fit = Cell(point.fit, tone=_TONES[point.fit])
        cells = (Cell(sizes_text(point)), fit, Cell(verdict_text(point)), Cell(bytes_text(most), most))
        rows.append(Row(cells, details, is_open=len(report.points) == 1))
    return Table("One row per choice of sizes", columns, tuple(rows))


def _answers(report: PlanReport) -> Iterator[Part]:
    if report.greatest:
        yield Items(tuple(map(greatest_text, report.greatest)))
    if report.machines:
        columns = (
            Column("devices"),
            Column("enough", is_choice=True),
            Column("to spare"),
            Column("placement"),
        )
        rows = []
        for machine in report.machines:
            spare = None if machine.headroom is None else machine.headroom.lower
            name = machine.profile if machine.count in (None, 1) else f"{machine.count}x{machine.profile}"
            answer = Cell("none tried", tone="bad") if machine.count is None else Cell("enough", tone="good")
            size = Cell("" if spare is None else bytes_text(spare), spare)
            placed = "" if machine.count is None else machine.device_map or "one device"
            rows.append(Row((Cell(name), answer, size, Cell(placed))))
        yield Table("How many devices of each model are enough", columns, tuple(rows))


def _memory(point: PlannedPoint) -> Iterator[Table]:
    (_, *devices), *rows = memory_table(point)
    columns = (Column("memory"), *map(Column, devices))
    yield Table(f"At {sizes_text(point)}", columns, tuple(Row(tuple(map(Cell, row))) for row in rows))


def _columns(report: PlanReport) -> list[tuple[PlannedDevice, bool]]:
    """Return each device of the first point, and whether it is that of eager mode; the fullest first."""
    point = report.points[0]
    found = [*((device, False) for device in point.devices), *((device, True) for device in point.eager)]
    return sorted(found, key=lambda column: -column[0].tensor_bytes)


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
    columns = (
        Column("what"),
        Column("kind", is_choice=True),
        Column("bytes"),
        Column("tensor"),
        Column("place"),
    )
    rows = tuple(map(_tensor, device.largest))
    return Table(peak_text(device.peak, where, phase).removesuffix("; largest there:"), columns, rows)


def _tensor(tensor: PlannedTensor) -> Row:
    shape = "" if tensor.shape is None else f"{tensor.dtype}[{','.join(map(str, tensor.shape))}]"
    times = "" if tensor.count == 1 else f"{tensor.count:,} × "
    name = tensor.name if not tensor.module_path else f"{tensor.module_path}: {tensor.name}"
    cells = (
        Cell(name),
        Cell(tensor.kind),
        Cell(bytes_text(tensor.bytes), tensor.bytes),
        Cell(times + shape),
        Cell(tensor.line or ""),
    )
    return Row(cells)
