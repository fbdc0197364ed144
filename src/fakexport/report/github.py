"""The report as GitHub workflow commands, which GitHub shows next to the changed lines."""

from __future__ import annotations

from fakexport.diagnostics import render_github as annotation
from fakexport.documents import escaped
from fakexport.report.text import summary_line
from fakexport.report.verdict import Report
from fakexport.report.verdict_table import result_text

_ORDER = ("error", "warning", "note")


def render_github(report: Report) -> str:
    """Return one workflow command per diagnostic, then lines for the log: a verdict each and a summary.

    Errors come first, because GitHub shows only ten annotations of each kind per step.

    Args:
        report: What the check found.
    Returns:
        Text that ends in one line end.
    """
    by_severity = sorted(report.diagnostics, key=lambda diagnostic: _ORDER.index(diagnostic.severity))
    lines = [annotation(diagnostic) for diagnostic in by_severity]
    lines += [escaped(f"target {v.target.name}: {result_text(v)}") for v in report.verdicts]
    return "\n".join([*lines, summary_line(report)]) + "\n"
