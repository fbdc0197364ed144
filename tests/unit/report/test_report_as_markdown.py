"""Markdown for the summary of a CI job."""

from dataclasses import replace

from fakexport.report import ProjectReport, render_markdown
from fakexport.rules.diagnostics import Diagnostic
from tests.unit.report.sample_reports import report, verdict


def test_text_from_a_model_is_never_markup():
    name = "x|`</code><script>\n# title"
    found = Diagnostic("FE503", "warning", "a</summary>", notes=("```\n````\n# out",))

    text = render_markdown(
        ProjectReport((replace(report(verdict(name), diagnostics=(found,)), source=name),), {})
    )

    assert "<script>" not in text
    assert "a</summary>" not in text.replace("a&lt;/summary&gt;", "").partition("text\n")[0]
    assert "\n`````text\n" in text
    assert len([line for line in text.splitlines() if line.startswith("|")]) == 3


def test_many_findings_are_cut_with_a_count_errors_first():
    found = [Diagnostic("FE503", severity, "m") for severity in ["warning"] * 60 + ["error"]]

    text = render_markdown(ProjectReport((report(diagnostics=tuple(found)),), {}))

    assert text.count("<details>") == 50
    assert text.index("error[FE503]") < text.index("warning[FE503]")
    assert "11 more findings" in text
