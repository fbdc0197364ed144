"""Render reports as text for people and as GitHub workflow commands."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from fakexport.files import escaped
from fakexport.report.difference_listing import difference_listing
from fakexport.report.quantity import bytes_text, plural
from fakexport.report.rank_summary import rank_listing
from fakexport.report.runtime_verdict import runtime_listing
from fakexport.report.stage_summary import stage_listing
from fakexport.report.transfer_listing import transfer_listing
from fakexport.report.verdict import Report
from fakexport.report.verdict_table import remarks, result_text, verdict_table
from fakexport.rules.diagnostics import Diagnostic, render_text
from fakexport.rules.diagnostics import render_github as annotation

if TYPE_CHECKING:
    from fakexport.archive.weights import WeightsReport

MIN_WIDTH = 40


def render_report(report: Report, *, width: int = 100) -> str:
    """Return the verdict table, the differences, the transfers, the diagnostics and a summary line.

    The text has no colors, and only the columns for times and memory use differ between runs. Empty parts are
    left out. Long lists are shortened and end with the number of omitted items; `to_dict` returns all items.

    Args:
        report: The report.
        width: Number of columns, at least 40. Messages of torch and source lines are not wrapped and may be
            longer.
    """
    parts = _parts(report, max(width, MIN_WIDTH))
    return "\n\n".join("\n".join(lines) for lines in parts if lines) + "\n"


def summary_line(report: Report) -> str:
    """Return `2 of 3 targets export; 1 error, 0 warnings`, without a newline."""
    exportable = sum(verdict.is_exportable for verdict in report.verdicts)
    of_all = plural(len(report.verdicts), "target")
    verb = "exports" if len(report.verdicts) == 1 else "export"
    return f"{exportable} of {of_all} {verb}; {_counts(report.diagnostics)}"


def _counts(diagnostics: Iterable[Diagnostic]) -> str:
    """Return `1 error, 0 warnings`."""
    severities = [diagnostic.severity for diagnostic in diagnostics]
    return ", ".join(plural(severities.count(name), name) for name in ("error", "warning"))


def _parts(report: Report, width: int) -> Iterator[list[str]]:
    versions = ", ".join(f"{name} {version}" for name, version in report.versions.items())
    yield [escaped(line) for line in (report.source, versions) if line]
    yield verdict_table(report, width=width)
    yield remarks(report, width=width)
    yield _titled(
        "Differences", [difference_listing(difference, width=width) for difference in report.differences]
    )
    yield _titled(
        "Transfers",
        [transfer_listing(verdict, width=width) for verdict in report.verdicts if verdict.transfers],
    )
    yield _titled(
        "Ranks", [rank_listing(v.target.name, v.ranks) for v in report.verdicts if v.ranks is not None]
    )
    yield _titled(
        "Stages", [stage_listing(v.target.name, v.stages) for v in report.verdicts if v.stages is not None]
    )
    yield _titled(
        "Runtimes",
        [[*runtime_listing(v.target.name, v.runtimes, width=width)] for v in report.verdicts if v.runtimes],
    )
    for diagnostic in report.diagnostics:
        yield [render_text(diagnostic)]
    yield [summary_line(report)]


def _titled(title: str, listings: list[list[str]]) -> list[str]:
    return [title, *(line for listing in listings for line in listing)] if listings else []


_ORDER = ("error", "warning", "note")


def render_github(report: Report) -> str:
    """Return one workflow command per diagnostic, then log lines: one per verdict, and a summary.

    Errors come first, because GitHub shows only ten annotations of each kind per step.
    """
    by_severity = sorted(report.diagnostics, key=lambda diagnostic: _ORDER.index(diagnostic.severity))
    lines = [annotation(diagnostic) for diagnostic in by_severity]
    lines += [escaped(f"target {v.target.name}: {result_text(v)}") for v in report.verdicts]
    return "\n".join([*lines, summary_line(report)]) + "\n"


def render_weights(report: WeightsReport) -> str:
    """Return the comparison of weights, the diagnostics, and a summary line.

    The text has no colors, and the same report always produces the same text. Names of repeated layers are
    merged; `to_dict` returns all names.
    """
    entries = f"{report.entries:,} entries, {bytes_text(report.entry_bytes)}"
    converted = (
        f"; {report.converted} of them are converted by the rules of transformers" if report.converted else ""
    )
    head = [
        escaped(f"model       {report.source}: {plural(report.weights, 'weight')}"),
        escaped(f"checkpoint  {report.checkpoint}: {entries}{converted}"),
    ]
    if report.computed:
        listed = ", ".join(report.computed)
        head.append(
            escaped(f"computed    {listed}: missing from the checkpoint, which the model's class allows")
        )
    parts = ["\n".join(head), *map(render_text, report.diagnostics)]
    return "\n\n".join([*parts, f"{report.summary}; {_counts(report.diagnostics)}"]) + "\n"
