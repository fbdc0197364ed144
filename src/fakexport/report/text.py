"""The report as text for people, and as GitHub workflow commands."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from fakexport.diagnostics import escaped, render_text
from fakexport.diagnostics import render_github as annotation
from fakexport.report.difference_listing import difference_listing
from fakexport.report.quantity import bytes_text, plural
from fakexport.report.rank_summary import rank_listing
from fakexport.report.transfer_listing import transfer_listing
from fakexport.report.verdict import Report
from fakexport.report.verdict_table import remarks, result_text, verdict_table

if TYPE_CHECKING:
    from fakexport.weights import WeightsReport

MIN_WIDTH = 40


def render_report(report: Report, *, width: int = 100) -> str:
    """Return the verdict table, the differences, the transfers, the diagnostics and a summary line.

    Plain text without colors. Deterministic except for the columns of times and memory. Parts that say
    nothing are left out; long lists are cut with a count, `to_dict` has all of them.

    Args:
        report: What the check found.
        width: Columns of text that there is room for, at least 40. Messages of torch and source lines are
            not broken, so single lines may be longer.
    """
    parts = _parts(report, max(width, MIN_WIDTH))
    return "\n\n".join("\n".join(lines) for lines in parts if lines) + "\n"


def summary_line(report: Report) -> str:
    """Return `2 of 3 targets export; 1 error, 0 warnings`, without a line end."""
    exportable = sum(verdict.is_exportable for verdict in report.verdicts)
    severities = [diagnostic.severity for diagnostic in report.diagnostics]
    of_all = plural(len(report.verdicts), "target")
    errors = plural(severities.count("error"), "error")
    warnings = plural(severities.count("warning"), "warning")
    verb = "exports" if len(report.verdicts) == 1 else "export"
    return f"{exportable} of {of_all} {verb}; {errors}, {warnings}"


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
    for diagnostic in report.diagnostics:
        yield [render_text(diagnostic)]
    yield [summary_line(report)]


def _titled(title: str, listings: list[list[str]]) -> list[str]:
    return [title, *(line for listing in listings for line in listing)] if listings else []


_ORDER = ("error", "warning", "note")


def render_github(report: Report) -> str:
    """Return one workflow command per diagnostic, then lines for the log: a verdict each and a summary.

    Errors come first, because GitHub shows only ten annotations of each kind per step.
    """
    by_severity = sorted(report.diagnostics, key=lambda diagnostic: _ORDER.index(diagnostic.severity))
    lines = [annotation(diagnostic) for diagnostic in by_severity]
    lines += [escaped(f"target {v.target.name}: {result_text(v)}") for v in report.verdicts]
    return "\n".join([*lines, summary_line(report)]) + "\n"


def render_weights(report: WeightsReport) -> str:
    """Return what was compared, the diagnostics, and one line of summary.

    Plain text without colors; the same report returns the same text. Names of repeated layers are folded,
    `weights_to_dict` has all of them.
    """
    entries = f"{report.entries:,} entries, {bytes_text(report.entry_bytes)}"
    converted = f"; {report.converted} of them are converted as transformers does" if report.converted else ""
    head = [
        escaped(f"model       {report.source}: {plural(report.weights, 'weight')}"),
        escaped(f"checkpoint  {report.checkpoint}: {entries}{converted}"),
    ]
    if report.computed:
        listed = ", ".join(report.computed)
        head.append(escaped(f"computed    {listed}: the checkpoint lacks them, as the model's class allows"))
    severities = [diagnostic.severity for diagnostic in report.diagnostics]
    errors = plural(severities.count("error"), "error")
    warnings = plural(severities.count("warning"), "warning")
    parts = [
        "\n".join(head),
        *map(render_text, report.diagnostics),
        f"{report.summary}; {errors}, {warnings}",
    ]
    return "\n\n".join(parts) + "\n"
