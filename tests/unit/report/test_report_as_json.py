"""The JSON form of a report; its fields are checked against the docs in tests/contract/."""

from __future__ import annotations

import json
from dataclasses import replace

from fakexport.report import json_text, to_dict
from tests.unit.report.sample_reports import TIMINGS, full_report, report, verdict


def test_the_text_is_the_data():
    text = json_text(to_dict(full_report()))

    assert json.loads(text) == to_dict(full_report())
    assert text.isascii()
    assert text.endswith("}\n")


def test_only_measured_differs_between_two_runs():
    first, second = report(), report(verdict(timings=replace(TIMINGS, build_s=9.9, peak_rss_bytes=1)))

    one, two = to_dict(first), to_dict(second)

    assert one.pop("measured") != two.pop("measured")
    assert json.dumps(one) == json.dumps(two)


def test_measured_comes_last_and_holds_the_timings_of_each_target():
    data = to_dict(full_report())

    assert list(data)[-1] == "measured"
    assert [row["target"] for row in data["measured"]] == ["cpu+cuda", "H100", "T4"]
    assert data["measured"][0]["capture_s"] == 35.26


def test_a_program_is_not_part_of_it():
    holder = verdict(saved=object())

    assert to_dict(report(holder)) == to_dict(report(verdict()))


def test_all_transfers_are_listed():
    hundred = verdict(transfers=full_report().verdicts[0].transfers * 50)

    assert len(to_dict(report(hundred))["targets"][0]["transfers"]) == 100


def test_the_data_shares_nothing_with_the_report():
    sample = full_report()

    to_dict(sample)["versions"]["torch"] = "other"
    to_dict(sample)["targets"][0]["summary"]["operators"].clear()

    assert to_dict(sample) == to_dict(full_report())


def test_is_clean_is_what_the_exit_code_says():
    assert to_dict(report())["is_clean"] is True
    assert to_dict(full_report())["is_clean"] is False
