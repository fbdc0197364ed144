"""Runs next to each other: the denominator, and what cannot pass for a success."""

import json
import shlex
from dataclasses import replace

import pytest

from fakexport.checking.sweep import (
    SweepRecord,
    answers_of,
    collect_results,
    compare_runs,
    results_document,
    results_text,
)
from fakexport.checking.sweep.results import ResultsError, SweepReason
from fakexport.report import render_page
from tests.page_reading import HOSTILE, assert_loads_nothing, read_page, rows

FOUND = {
    "code": "FE201",
    "severity": "error",
    "message": "data-dependent branch",
    "labels": [{"is_primary": True, "span": {"path": "model.py", "line": 7}}],
    "notes": ["torch says so"],
    "fix": {"message": "Use `torch.where`", "is_safe": False, "command": None},
}


def command(model, options="--target H100"):
    return f"fakexport check hf:{model} {options}".rstrip()


def run(**statuses):
    """A run in which the models have these statuses."""
    found = {}
    for model, status in statuses.items():
        report = {"diagnostics": [FOUND]} if status == "fails" else None
        reason = "" if status == "exports" else f"error: hf:{model} is bad"
        found[command(model)] = SweepRecord(
            command=command(model),
            status=status,
            reason=reason,
            seconds=1.5,
            peak_bytes=2**30,
            report=report,
            versions={"torch": "2.13"},
            machine="a machine",
        )
    return found


def page_of(results):
    root = read_page(render_page(results_document(results)))
    assert_loads_nothing(root)
    return root


def test_what_was_refused_or_did_not_run_has_not_passed():
    zoo = [command(model) for model in "abcde"]

    results = collect_results([("r", run(a="exports", b="refused", c="fails"))], zoo)

    counts = {status: count for status, count in results.runs[0].counts.items() if count}
    assert counts == {"exports": 1, "fails": 1, "refused": 1, "not run": 2}
    root = page_of(results)
    assert "r: 1 of 5 checks export" in next(root.all("header")).text
    assert rows(root, "Number of checks")[0] == ["all", "r", "5", "1", "1", "1", "2", "20.0 %"]
    assert next(root.all("p")).attributes["class"] == "lead bad"


def test_each_run_has_the_same_denominator():
    results = collect_results([("old", run(a="exports", b="exports")), ("new", run(b="fails", c="exports"))])

    assert [sum(run.counts.values()) for run in results.runs] == [3, 3]
    root = page_of(results)
    assert [row[2] for row in rows(root, "One row per check")] == ["worse", "not in both", "not in both"]
    assert "old: 2 of 3 checks export; new: 1 of 3 checks export" in next(root.all("header")).text


def test_a_row_opens_to_its_command_and_findings():
    root = page_of(collect_results([("r", run(a="fails"))]))

    details = next(root.all("details"))
    (row,) = rows(root, "One row per check")
    assert row == ["hf:a", "--target H100", "fails", "error: hf:a is bad", "1.5", "1.0 GiB"]
    assert [each.text for each in details.all("pre")] == [command("a")]
    (finding,) = details.all("article")
    texts = [" ".join(each.text.split()) for each in finding.all() if each.tag in ("p", "dd", "code")]
    assert texts == ["error FE201 data-dependent branch", "model.py:7", "torch says so", "torch.where"]
    assert rows(root, "Environments of the checks") == [["E1", "r", "a machine", "torch 2.13"]]


def asked(records, **answers):
    """The records with the answers of runtimes."""
    found = [{"runtime": name, "result": result} for name, result in answers.items()]
    return {key: replace(each, report={"targets": [{"runtimes": found}]}) for key, each in records.items()}


def test_the_answers_of_runtimes_are_columns():
    runs = {
        "old": asked(run(a="exports"), onnx="taken", aoti="rewritten") | run(b="exports"),
        "new": asked(run(a="exports"), onnx="partly", aoti="taken") | run(b="exports"),
    }
    results = collect_results(list(runs.items()))

    table = rows(page_of(results), "One row per check")
    compared = compare_runs(*runs.values())

    assert table[0] == [
        *("hf:a", "--target H100", "worse"),
        *("exports", "", "1.5", "1.0 GiB", "taken", "taken with rewrites"),
        *("exports", "", "1.5", "1.0 GiB", "partly", "taken"),
    ]
    assert table[1][-2:] == ["", ""]
    found = json.loads(results_text(results))["checks"][0]["results"]
    assert [each["runtimes"] for each in found] == [
        {"onnx": "taken", "aoti": "rewritten"},
        {"onnx": "partly", "aoti": "taken"},
    ]
    assert [change.command for change in compared.worse] == [command("a")]
    assert not compared.better


def test_the_worst_answer_counts_for_several_targets():
    (record,) = run(a="exports").values()
    rows = [[{"runtime": "onnx", "result": result}] for result in ("taken", "refused", "partly")]

    found = answers_of(replace(record, report={"targets": [{"runtimes": row} for row in rows]}))

    assert found == {"onnx": "refused"}


def test_a_code_links_to_its_explanation():
    root = page_of(collect_results([("r", run(a="fails", b="fails"))]))

    explained = [each for each in root.all("details") if each.attributes.get("id") == "FE201"]
    assert len(explained) == 1
    assert "torch.cond" in explained[0].text
    links = [each for each in root.all("a") if each.attributes["href"] == "#FE201"]
    assert [each.text for each in links] == ["FE201", "FE201"]


def test_environments_are_a_column_if_a_run_has_several():
    records = run(a="exports", b="exports")
    other = replace(records[command("b")], machine="another machine")

    root = page_of(collect_results([("r", {**records, other.command: other})]))

    assert [row[-1] for row in rows(root, "One row per check")] == ["E1", "E2"]
    assert [row[:2] for row in rows(root, "Environments of the checks")] == [["E1", "r"], ["E2", "r"]]


def test_a_long_reason_is_whole_where_the_row_opens():
    records = run(a="refused")
    (record,) = records.values()
    long = replace(record, reason="x" * 5_000)

    root = page_of(collect_results([("r", {record.command: long})]))

    assert len(rows(root, "One row per check")[0][3]) == 201
    assert "x" * 1_900 in next(root.all("details")).text


def test_reasons_are_counted_whatever_the_model_is_called():
    results = collect_results([("r", run(a="refused", b="refused", c="exports"))])

    assert results.runs[0].reasons == (SweepReason("refused", "error: SOURCE is bad", 2),)


def test_ten_thousand_checks_are_a_page_of_less_than_a_megabyte():
    statuses = {f"m{n}": "fails" if n % 4 == 0 else "exports" for n in range(10_000)}
    results = collect_results([("r", run(**statuses))])

    text = render_page(results_document(results))

    assert len(text.encode()) <= 1_000_000
    shown = rows(read_page(text), "One row per check")
    assert sum(row[2] == "fails" for row in shown) == 2_500
    assert f"{10_000 - len(shown):,} more rows are not on this page" in text
    assert json.loads(results_text(results))["total"] == 10_000


@pytest.mark.parametrize("name", HOSTILE)
def test_a_name_is_text(name):
    found = {**FOUND, "message": name, "notes": [name], "fix": {"message": name}}
    record = SweepRecord(
        command=shlex.join(["fakexport", "check", name, "--target", name]),
        status="fails",
        reason=name,
        seconds=1.0,
        peak_bytes=1,
        report={"diagnostics": [found]},
        versions={name: name},
        machine=name,
    )

    text = render_page(results_document(collect_results([(name, {record.command: record})])))

    assert_loads_nothing(read_page(text))
    assert not set("\u202e\u2066\u200b\x1b\x00") & set(text)


def test_the_same_runs_are_the_same_bytes():
    texts = {results_text(collect_results([("r", run(a="fails", b="exports"))])) for _ in range(2)}

    assert len(texts) == 1
    data = json.loads(texts.pop())
    assert data["checks"][0]["results"][0]["codes"] == ["FE201"]
    assert data["environments"] == [{"versions": {"torch": "2.13"}, "machine": "a machine"}]


@pytest.mark.parametrize(
    ("runs", "zoo", "message"),
    [
        ([("r", run(a="exports"))], [command("b")], "run 'r' has results for a check that is not in"),
        ([("r", run(a="exports")), ("r", run())], None, "two runs are called 'r'"),
        ([("r", run())], None, "the runs contain no checks"),
    ],
)
def test_what_has_no_fixed_denominator_is_refused(runs, zoo, message):
    with pytest.raises(ResultsError, match=message):
        collect_results(runs, zoo)


def test_a_report_that_is_not_understood_has_no_findings():
    records = run(a="fails")
    records[command("a")].report["diagnostics"] = [{"code": 7}, "<script>"]

    root = page_of(collect_results([("r", records)]))

    assert len(list(next(root.all("details")).all("pre"))) == 1


def test_a_command_of_another_shape_is_shown_whole():
    record = SweepRecord(
        command="it's <b>", status="exports", reason="", seconds=1.0, peak_bytes=1, report=None
    )

    root = page_of(collect_results([("r", {record.command: record})]))

    assert rows(root, "One row per check")[0][:2] == ["it's <b>", ""]
    assert rows(root, "Environments of the checks") == [["E1", "r", "not recorded", "not recorded"]]
