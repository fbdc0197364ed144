"""Markdown for the summary of a CI job."""

from dataclasses import replace

from fakexport.diagnostics import Diagnostic, render_text
from fakexport.report import ProjectReport, render_markdown
from tests.unit.report.sample_reports import full_report, report, verdict


def test_a_row_per_source_and_target_then_differences_and_findings():
    text = render_markdown(ProjectReport((report(), full_report()), {"absent.py:f": "no such file"}))

    assert text.startswith("### fakexport check\n\n3 sources: 1 clean, 1 with findings, 1 not checked.\n\n")
    rows = [line for line in text.splitlines() if line.startswith("| <code>")]
    assert [row.split(" | ")[1:5] for row in rows] == [
        ["<code>cpu+H100</code>", "✅ exports", "0", "0"],
        ["<code>cpu+cuda</code>", "✅ exports", "0", "1"],
        ["<code>H100</code>", "✅ exports", "0", "1"],
        ["<code>T4</code>", "❌ fails at capture", "1", "1"],
    ]
    assert "❌ <code>absent.py&#58;f</code> was not checked: <code>no such file</code>" in text
    for diagnostic in full_report().diagnostics:
        assert render_text(diagnostic) in text


def test_nothing_of_a_model_is_markup():
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
