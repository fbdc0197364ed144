"""What `fakexport check` found, as a page."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import chain
from typing import TYPE_CHECKING

from fakexport.diagnostics import Diagnostic, Severity, render_text
from fakexport.report.page.difference_page import difference_parts
from fakexport.report.page.document import (
    Cell,
    Code,
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
from fakexport.report.project_report import ProjectReport, project_summary_line
from fakexport.report.quantity import bytes_text, seconds_text
from fakexport.report.rank_summary import RankSummary, rank_lines
from fakexport.report.text import summary_line
from fakexport.report.transfer_listing import place_text, route_text
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

if TYPE_CHECKING:
    from fakexport.program import Transfer

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


_TONES: dict[Severity, Tone | None] = {"error": "bad", "warning": "warn", "note": None}
_COLUMNS = (
    Column("finding"),
    Column("severity", is_choice=True),
    Column("code", is_choice=True),
    Column("place"),
    Column("times"),
    Column("targets"),
)


def diagnostic_table(diagnostics: Iterable[Diagnostic]) -> Table:
    """Return a row per diagnostic, in their order; the first error is open."""
    found = list(diagnostics)
    first = next((each for each in found if each.severity == "error"), None)
    rows = tuple(_row(each, is_open=each is first) for each in found)
    return Table("One row per finding; open it for the source and a fix", _COLUMNS, rows)


def _row(found: Diagnostic, *, is_open: bool) -> Row:
    place = "" if found.primary is None else place_text(found.primary.span)
    cells = (
        Cell(found.message),
        Cell(found.severity, tone=_TONES[found.severity]),
        Cell(found.code),
        Cell(place or found.module_path or ""),
        Cell(f"{found.count:,}", found.count),
        Cell(", ".join(found.targets)),
    )
    return Row(cells, (Code(render_text(found)),), is_open)


def rank_parts(name: str, summary: RankSummary) -> Iterator[Part]:
    """Yield what a report says of the ranks of a target, and a table of what they exchange."""
    yield Items(tuple(line.strip() for line in rank_lines(name, summary)))
    columns = ("count", "kind", "bytes each", "tensor of a rank", "module")
    rows = tuple(
        Row(
            (
                Cell(f"{found.count:,}", found.count),
                Cell(found.kind),
                Cell("?" if found.bytes is None else bytes_text(found.bytes), found.bytes),
                Cell(f"{found.dtype}[{', '.join(found.shape)}]"),
                Cell(found.module_path),
            )
        )
        for found in summary.collectives
    )
    yield Table(f"Collectives of one call on {name}", tuple(map(Column, columns)), rows)


_TRANSFER_COLUMNS = (
    Column("route", is_choice=True),
    Column("position"),
    Column("bytes"),
    Column("tensor"),
    Column("operator", is_choice=True),
    Column("module"),
    Column("place"),
)


def transfer_table(caption: str, transfers: Iterable[Transfer]) -> Table:
    """Return a row per transfer; bytes of symbolic sizes are those of the example inputs."""
    return Table(caption, _TRANSFER_COLUMNS, tuple(map(_transfer_row, transfers)))


def _transfer_row(transfer: Transfer) -> Row:
    size = "?" if transfer.bytes is None else bytes_text(transfer.bytes)
    if transfer.bytes_expression:
        size += f" ({transfer.bytes_expression})"
    cells = (
        Cell(route_text(transfer)),
        Cell(f"{transfer.index:,}", transfer.index),
        Cell(size, transfer.bytes),
        Cell(f"{transfer.dtype}[{', '.join(transfer.shape)}]"),
        Cell(transfer.operator),
        Cell(transfer.module_path),
        Cell(place_text(transfer.span)),
    )
    return Row(cells)
