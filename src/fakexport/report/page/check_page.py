"""What `fakexport check` found, as a page."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain

from fakexport.report.page.diagnostic_table import diagnostic_table
from fakexport.report.page.difference_page import difference_parts
from fakexport.report.page.document import (
    Cell,
    Column,
    Document,
    Facts,
    Items,
    Part,
    Row,
    Section,
    Table,
    Tone,
    Tree,
)
from fakexport.report.page.module_tree import module_branch
from fakexport.report.page.rank_table import rank_parts
from fakexport.report.page.transfer_table import transfer_table
from fakexport.report.project_report import ProjectReport, project_summary_line
from fakexport.report.quantity import bytes_text, seconds_text
from fakexport.report.text import summary_line
from fakexport.report.verdict import Report, Verdict
from fakexport.report.verdict_table import (
    STATE,
    fact_cells,
    has_state,
    memory_left_text,
    remark_texts,
    result_text,
    state_of,
    weight_bytes,
)

_ELSEWHERE = "fakexport check --format json"
_HEAD = (
    *("target", "verdict", "devices", "nodes", "parameters", "weights per device", "transfers"),
    *("memory left", "build", "capture", "analyse", "peak memory"),
)


def check_document(report: Report) -> Document:
    """Return the page of a check: verdicts, diagnostics, differences, transfers and modules."""
    tone: Tone = "good" if report.is_clean else "bad"
    return Document(report.source, summary_line(report), tone, tuple(_sections(report)), _ELSEWHERE)


def project_document(project: ProjectReport) -> Document:
    """Return the page of all sources of a repository, one after the other."""
    rows = [
        Row((Cell(report.source), _clean_cell(report), Cell(summary_line(report))))
        for report in project.reports
    ]
    rows += [
        Row((Cell(source), Cell("not checked", tone="bad"), Cell(reason)))
        for source, reason in project.refused.items()
    ]
    columns = (Column("source"), Column("result", is_choice=True), Column("reason"))
    overview = Section("Sources", (Table("One row per source", columns, tuple(rows)),))
    parts = (
        Section(f"{report.source}: {section.title}", section.parts)
        for report in project.reports
        for section in _sections(report)
    )
    return Document(
        "fakexport check",
        project_summary_line(project),
        "good" if project.exit_code == 0 else "bad",
        tuple(chain([overview], parts)),
        _ELSEWHERE,
    )


def _clean_cell(report: Report) -> Cell:
    return Cell("clean", tone="good") if report.is_clean else Cell("with findings", tone="bad")


def _sections(report: Report) -> Iterator[Section]:
    yield Section("Verdicts", (_verdicts(report), *_remarks(report)))
    if report.diagnostics:
        yield Section("Diagnostics", (diagnostic_table(report.diagnostics),))
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
    yield Section("Modules", tuple(_trees(report)))
    yield Section("Versions", (Facts(tuple(report.versions.items())),))


def _verdicts(report: Report) -> Table:
    choices = ("verdict", "devices")
    is_shown = any(map(has_state, report.verdicts))
    titles = (*_HEAD, STATE) if is_shown else _HEAD
    columns = tuple(Column(title, is_choice=title in choices) for title in titles)
    rows = tuple(_verdict(report, each, is_state_shown=is_shown) for each in report.verdicts)
    return Table("One row per target", columns, rows)


def _verdict(report: Report, verdict: Verdict, *, is_state_shown: bool) -> Row:
    summary, timings = verdict.summary, verdict.timings
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
        *(Cell(seconds_text(s), s) for s in (timings.build_s, timings.capture_s, timings.analyse_s)),
        Cell(bytes_text(timings.peak_rss_bytes), timings.peak_rss_bytes),
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


def _trees(report: Report) -> Iterator[Tree]:
    """Yield the tree of each target's model; of those that are equal, the first."""
    shown = []
    for verdict in report.verdicts:
        if verdict.modules is not None and verdict.modules not in shown:
            shown.append(verdict.modules)
            caption = f"Modules on {verdict.target.name}; equal blocks are one line, with the numbers of one"
            yield Tree(caption, (module_branch(verdict.modules),))
