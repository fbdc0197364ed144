"""The report as GitHub workflow commands."""

from fakexport.report import render_github
from fakexport.rules.diagnostics import Diagnostic
from tests.unit.report.sample_reports import report, verdict


def test_errors_come_before_warnings_because_github_shows_ten():
    findings = [Diagnostic("FE503", severity, "m") for severity in ("note", "warning", "error", "warning")]

    text = render_github(report(diagnostics=tuple(findings)))

    assert [line.split()[0] for line in text.splitlines()[:4]] == [
        "::error",
        "::warning",
        "::warning",
        "::notice",
    ]


def test_a_name_cannot_start_a_command():
    text = render_github(report(verdict("x\n::error::owned")))

    assert not any(line.startswith("::") for line in text.splitlines())
