"""Render reports as Markdown, for CI job summaries and comments."""

from __future__ import annotations

import re
from collections.abc import Iterator

from fakexport.files import escaped
from fakexport.report.difference_listing import difference_listing
from fakexport.report.rank_summary import rank_listing
from fakexport.report.runtime_verdict import runtime_listing
from fakexport.report.stage_summary import stage_listing
from fakexport.report.text import summary_line
from fakexport.report.verdict import ProjectReport, Report, Verdict, project_summary_line
from fakexport.report.verdict_table import result_text, weights_of
from fakexport.rules.diagnostics import Diagnostic, render_text

_MOST_FINDINGS = 50
_MOST_CHARACTERS = 20_000  # Limit per finding: GitHub shows a summary of up to 1 MiB.
_WIDTH = 100
_MARKS = re.compile(r"[]!\"#$&()*:;<>@[\\^_`{|}~]|(?<=www)\.")
_HEAD = ("source", "target", "verdict", "errors", "warnings", "weights per device")


def render_markdown(project: ProjectReport) -> str:
    """Return a table with a row per source and target, then collapsed differences and findings.

    The text is GitHub-flavored Markdown. It contains no times and no memory use, so the same model and
    targets always produce the same text. All text from a model is escaped. At most 50 findings are shown,
    errors first.
    """
    parts = ["### fakexport check", _headline(project), "\n".join(_table(project))]
    parts += _refused(project)
    parts += [part for report in project.reports for part in _ranks(report)]
    parts += [part for report in project.reports for part in _runtimes(report)]
    parts += [part for report in project.reports for part in _differences(report)]
    parts += _findings(project)
    return "\n\n".join(parts) + "\n"


def _headline(project: ProjectReport) -> str:
    is_one = len(project.reports) == 1 and not project.refused
    return f"{summary_line(project.reports[0]) if is_one else project_summary_line(project)}."


def _table(project: ProjectReport) -> Iterator[str]:
    yield f"| {' | '.join(_HEAD)} |"
    yield "|---|---|---|---:|---:|---|"
    for report in project.reports:
        for verdict in report.verdicts:
            yield f"| {' | '.join(_row(report, verdict))} |"


def _row(report: Report, verdict: Verdict) -> Iterator[str]:
    name = verdict.target.name
    severities = [
        found.severity for found in report.diagnostics if name in found.targets or not found.targets
    ]
    yield _code(report.source)
    yield _code(name)
    yield f"{'✅' if verdict.is_exportable else '❌'} {result_text(verdict)}"
    yield str(severities.count("error"))
    yield str(severities.count("warning"))
    yield weights_of(verdict)


def _refused(project: ProjectReport) -> Iterator[str]:
    for source, reason in project.refused.items():
        yield f"❌ {_code(source)} was not checked: {_code(reason)}"


def _ranks(report: Report) -> Iterator[str]:
    for verdict in report.verdicts:
        if verdict.ranks is not None:
            listing = "\n".join(rank_listing(verdict.target.name, verdict.ranks))
            yield _folded(f"Ranks of {report.source}", listing)
        if verdict.stages is not None:
            listing = "\n".join(stage_listing(verdict.target.name, verdict.stages))
            yield _folded(f"Stages of {report.source}", listing)


def _runtimes(report: Report) -> Iterator[str]:
    for verdict in report.verdicts:
        if verdict.runtimes:
            listing = "\n".join(runtime_listing(verdict.target.name, verdict.runtimes, width=_WIDTH))
            yield _folded(f"Runtimes of {report.source}", listing)


def _differences(report: Report) -> Iterator[str]:
    for difference in report.differences:
        if not difference.difference.is_identical:
            title = f"Differences of {report.source}: {difference.first} and {difference.second}"
            yield _folded(title, "\n".join(difference_listing(difference, width=_WIDTH)))


def _findings(project: ProjectReport) -> Iterator[str]:
    found = [(report.source, diagnostic) for report in project.reports for diagnostic in report.diagnostics]
    found.sort(key=lambda item: ("error", "warning", "note").index(item[1].severity))
    for source, diagnostic in found[:_MOST_FINDINGS]:
        yield _folded(_title(source, diagnostic), render_text(diagnostic)[:_MOST_CHARACTERS])
    if (more := len(found) - _MOST_FINDINGS) > 0:
        yield f"{more:,} more findings are in the full report of this step."


def _title(source: str, found: Diagnostic) -> str:
    place = source if found.primary is None else f"{found.primary.span.path}:{found.primary.span.line}"
    return f"{found.severity}[{found.code}]: {found.message} at {place}"


def _folded(title: str, text: str) -> str:
    """Return a collapsible block with the text in a code fence that the text cannot close."""
    longest = max((len(run) for run in re.findall("`+", text)), default=0)
    fence = "`" * max(3, longest + 1)
    return f"<details><summary>{_code(title)}</summary>\n\n{fence}text\n{text}\n{fence}\n\n</details>"


def _code(text: str) -> str:
    """Return one line of inline code. Characters with a meaning in Markdown, such as `@`, are escaped."""
    return f"<code>{_MARKS.sub(lambda mark: f'&#{ord(mark[0])};', escaped(text))}</code>"
