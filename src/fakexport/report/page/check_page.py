"""HTML pages for `fakexport check` and `fakexport diff`."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import chain
from typing import TYPE_CHECKING

from fakexport.report.difference_listing import difference_headline, difference_items, fact_text, weight_text
from fakexport.report.page.document import (
    Cell,
    Document,
    Facts,
    Items,
    Paragraph,
    Part,
    Row,
    Section,
    Table,
    Tone,
)
from fakexport.report.page.findings import explanations, finding_list
from fakexport.report.page.module_tree import module_tree
from fakexport.report.quantity import bytes_text
from fakexport.report.rank_summary import RankSummary, rank_lines
from fakexport.report.runtime_verdict import RuntimeVerdict, runtime_details
from fakexport.report.stage_summary import STAGE_COLUMNS, StagesSummary, shared_lines, stage_cells
from fakexport.report.text import summary_line
from fakexport.report.transfer_listing import place_text, route_text
from fakexport.report.verdict import ProjectReport, Report, TargetDifference, Verdict, project_summary_line
from fakexport.report.verdict_table import (
    FACTS_HEAD,
    MEASURED_HEAD,
    MEMORY_LEFT,
    STATE,
    fact_cells,
    has_state,
    measured_cells,
    memory_left_text,
    remark_texts,
    result_text,
    state_of,
    weight_bytes,
)

if TYPE_CHECKING:
    from fakexport.archive import ArchiveDifference
    from fakexport.exporting.interface import Transfer

_ELSEWHERE = "fakexport check --format json"
_HEAD = (*FACTS_HEAD, MEMORY_LEFT)


def check_document(report: Report) -> Document:
    """Return the page of a check: verdicts, diagnostics, differences, transfers and modules."""
    tone: Tone = "good" if report.is_clean else "bad"
    sections = (
        *_sections(report),
        explanations({found.code for found in report.diagnostics}),
        *_about_run(report),
    )
    return Document(report.source, summary_line(report), tone, sections, _ELSEWHERE)


def project_document(project: ProjectReport) -> Document:
    """Return the page for all sources of a project."""
    results = {True: Cell("clean", tone="good"), False: Cell("with findings", tone="bad")}
    rows = [Row.of(each.source, results[each.is_clean], summary_line(each)) for each in project.reports]
    unchecked = Cell("not checked", tone="bad")
    rows += [Row.of(source, unchecked, reason) for source, reason in project.refused.items()]
    columns = ("source", "result", "reason")
    overview = Section("Sources", (Table("One row per source", columns, tuple(rows), ("result",)),))
    parts = (
        Section(f"{report.source}: {section.title}", section.parts)
        for report in project.reports
        for section in (*_sections(report), *_about_run(report))
    )
    codes = {found.code for report in project.reports for found in report.diagnostics}
    return Document(
        "fakexport check",
        project_summary_line(project),
        "good" if project.exit_code == 0 else "bad",
        tuple(chain([overview], parts, [explanations(codes)])),
        _ELSEWHERE,
    )


def _sections(report: Report) -> Iterator[Section]:
    yield Section("Verdicts", (_verdicts(report), *_remarks(report)))
    if report.diagnostics:
        yield Section("Diagnostics", (finding_list(report.diagnostics),))
    compared = [part for each in report.differences for part in difference_parts(each)]
    yield Section("Differences between targets", tuple(compared))
    moved = [
        transfer_table(f"Transfers on {verdict.target.name}, in the order of execution", verdict.transfers)
        for verdict in report.verdicts
        if verdict.transfers
    ]
    yield Section("Transfers", tuple(moved))
    ranks = ((verdict.target.name, verdict.ranks) for verdict in report.verdicts)
    yield Section("Ranks", tuple(part for name, each in ranks if each for part in rank_parts(name, each)))
    stages = ((verdict.target.name, verdict.stages) for verdict in report.verdicts)
    yield Section("Stages", tuple(part for name, each in stages if each for part in stage_parts(name, each)))
    asked = ((verdict.target.name, verdict.runtimes) for verdict in report.verdicts)
    yield Section("Runtimes", tuple(runtime_table(name, each) for name, each in asked if each))
    modules = {each.target.name: each.modules for each in report.verdicts if each.modules is not None}
    yield Section("Modules", (module_tree(modules),) if modules else ())


def _about_run(report: Report) -> Iterator[Section]:
    measured = [Row.of(*_measured(verdict)) for verdict in report.verdicts]
    caption = "Time of each step, and peak memory of the process that checked the target"
    yield Section("Measurements", (Table(caption, MEASURED_HEAD, tuple(measured)),))
    yield Section("Versions", (Facts(tuple(report.versions.items())),))


def _measured(verdict: Verdict) -> Iterator[Cell]:
    timings, texts = verdict.timings, measured_cells(verdict)
    keys = (None, timings.build_s, timings.capture_s, timings.analyse_s, timings.peak_rss_bytes)
    return (Cell(*each) for each in zip(texts, (*keys, timings.growth_bytes), strict=True))


def _verdicts(report: Report) -> Table:
    is_shown = any(map(has_state, report.verdicts))
    rows = tuple(_verdict(report, each, is_state_shown=is_shown) for each in report.verdicts)
    columns = (*_HEAD, STATE) if is_shown else _HEAD
    return Table("One row per target", columns, rows, ("verdict", "devices"))


def _verdict(report: Report, verdict: Verdict, *, is_state_shown: bool) -> Row:
    summary = verdict.summary
    _, result, *facts = fact_cells(verdict)
    keys: list[float | None] = [None] * len(facts)
    if summary is not None:
        moved = sum(transfer.bytes or 0 for transfer in verdict.transfers)
        weights = max(weight_bytes(summary).values(), default=0)
        keys = [None, summary.node_count, summary.parameters.elements, weights, moved]
    left = min(verdict.memory_left.values(), default=None)
    cells = [
        Cell(verdict.target.name),
        Cell(result, tone="good" if verdict.is_exportable else "bad"),
        *(Cell(text, key) for text, key in zip(facts, keys, strict=True)),
        Cell(memory_left_text(report, verdict), left),
    ]
    if is_state_shown:
        state = None if summary is None else max(summary.state.bytes_per_device.values(), default=0)
        cells.append(Cell(state_of(verdict), state))
    return Row(tuple(cells), tuple(_asked(verdict)))


def _asked(verdict: Verdict) -> Iterator[Part]:
    target, summary = verdict.target, verdict.summary
    asked = (
        ("topology", target.topology),
        ("device map", target.device_map),
        ("dtype", target.dtype),
        ("result", result_text(verdict)),
    )
    yield Facts(tuple((name, text) for name, text in asked if text))
    if summary is not None:
        yield Items(
            tuple(
                f"{value.name}: {value.dtype}[{', '.join(value.shape)}]"
                for value in summary.inputs
                if value.shape is not None
            )
        )


def _remarks(report: Report) -> Iterator[Part]:
    texts = tuple(remark_texts(report))
    if texts:
        yield Items(texts)


def runtime_table(name: str, verdicts: tuple[RuntimeVerdict, ...]) -> Table:
    """Return a row per runtime that was asked about a target's program."""
    rows = tuple(
        Row(
            (
                Cell(verdict.runtime),
                Cell(verdict.text, tone="bad" if verdict.codes else "good"),
                Cell(verdict.versions),
            ),
            (Items(tuple(runtime_details(verdict))),),
        )
        for verdict in verdicts
    )
    return Table(f"Runtimes asked about the program for {name}", ("runtime", "answer", "versions"), rows)


def rank_parts(name: str, summary: RankSummary) -> Iterator[Part]:
    """Yield the summary of a target's ranks, and a table of their collectives."""
    yield Items(tuple(line.strip() for line in rank_lines(name, summary)))
    columns = ("count", "kind", "bytes each", "tensor of a rank", "module")
    rows = tuple(
        Row.of(
            Cell(f"{found.count:,}", found.count),
            found.kind,
            Cell("?" if found.bytes is None else bytes_text(found.bytes), found.bytes),
            f"{found.dtype}[{', '.join(found.shape)}]",
            found.module_path,
        )
        for found in summary.collectives
    )
    yield Table(f"Collectives of one call on {name}", columns, rows)


def stage_parts(name: str, summary: StagesSummary) -> Iterator[Part]:
    """Yield a table of a target's pipeline stages, and a table of what each stage takes."""
    rows = tuple(Row.of(*stage_cells(stage)) for stage in summary.stages)
    yield Table(f"Pipeline stages of {name}", STAGE_COLUMNS, rows)
    columns = ("stage", "takes", "tensor", "bytes", "from")
    taken = tuple(
        Row.of(
            str(stage.stage),
            each.name,
            f"{each.dtype}[{', '.join(each.shape)}]",
            Cell("?" if each.bytes is None else bytes_text(each.bytes), each.bytes),
            "an input of the program" if each.source is None else f"stage {each.source}",
        )
        for stage in summary.stages
        for each in stage.inputs
    )
    yield Table(f"What the stages of {name} take", columns, taken)
    yield Items(tuple(shared_lines(summary)))


def transfer_table(caption: str, transfers: Iterable[Transfer]) -> Table:
    """Return a row per transfer. For symbolic sizes, the bytes are those of the example inputs."""
    columns = ("route", "position", "bytes", "tensor", "operator", "module", "place")
    return Table(caption, columns, tuple(map(_transfer_row, transfers)), ("route", "operator"))


def _transfer_row(transfer: Transfer) -> Row:
    size = "?" if transfer.bytes is None else bytes_text(transfer.bytes)
    if transfer.bytes_expression:
        size += f" ({transfer.bytes_expression})"
    return Row.of(
        route_text(transfer),
        Cell(f"{transfer.index:,}", transfer.index),
        Cell(size, transfer.bytes),
        f"{transfer.dtype}[{', '.join(transfer.shape)}]",
        transfer.operator,
        transfer.module_path,
        place_text(transfer.span),
    )


def archive_difference_document(found: ArchiveDifference) -> Document:
    """Return the page of `fakexport diff`: differences in the program, the weights and the metadata."""
    sections = (
        Section(
            "Program", tuple(difference_parts(TargetDifference(found.path_a, found.path_b, found.program)))
        ),
        Section(
            "Weights",
            _one("Weights that differ", ((item.field, weight_text(item)) for item in found.weights)),
        ),
        Section("Metadata", _one("Metadata that differs", ((i.field, fact_text(i)) for i in found.facts))),
        Section("Notes", (Items(found.notes),) if found.notes else ()),
    )
    return Document(
        f"{found.path_a} → {found.path_b}",
        "same program, same weights" if found.is_same else "the archives differ",
        "good" if found.is_same else "bad",
        sections,
        "fakexport diff --format json",
    )


def difference_parts(difference: TargetDifference) -> Iterator[Part]:
    """Yield the headline and, if there are differences, a table of them."""
    found = difference.difference
    title = f"{difference.first} → {difference.second}"
    yield Paragraph(f"{title}: {difference_headline(found)}")
    items = ((kind, text) for kind, texts in difference_items(found) for text in texts)
    yield from _one(f"From {difference.first} to {difference.second}", items)


def _one(caption: str, items: Iterable[tuple[str, str]]) -> tuple[Table, ...]:
    """Return a table with a row per difference, or no table if there are no differences."""
    rows = tuple(Row.of(text, kind) for kind, text in items)
    return (Table(caption, ("difference", "kind"), rows, ("kind",)),) if rows else ()
