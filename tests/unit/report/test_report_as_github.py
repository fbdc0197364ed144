"""The report as GitHub workflow commands."""

from fakexport.diagnostics import Diagnostic
from fakexport.report import render_github
from tests.unit.report.sample_reports import full_report, report, verdict


def test_annotations_first_then_verdicts_and_summary():
    text = render_github(full_report())

    error, warning, *log = text.splitlines()
    assert error.startswith("::error file=model.py,line=7,col=12,title=FE201::data-dependent branch:")
    assert warning == "::warning title=FE503::the weights need more memory"
    assert log == [
        "target cpu+cuda: exports",
        "target H100: exports",
        "target T4: fails at capture",
        "2 of 3 targets export; 1 error, 1 warning",
    ]


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
