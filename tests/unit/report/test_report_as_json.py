"""The JSON form of a report; its fields are checked against the docs in tests/contract/."""

from __future__ import annotations

import json
from dataclasses import replace

from fakexport.report import json_text, to_dict
from tests.unit.report.sample_reports import TIMINGS, full_report, report, verdict


def test_json_text_equals_the_dict():
    text = json_text(to_dict(full_report()))

    assert json.loads(text) == to_dict(full_report())
    assert text.isascii()
    assert text.endswith("}\n")


def test_only_measured_differs_between_two_runs():
    first, second = report(), report(verdict(timings=replace(TIMINGS, build_s=9.9, peak_rss_bytes=1)))

    one, two = to_dict(first), to_dict(second)

    assert one.pop("measured") != two.pop("measured")
    assert json.dumps(one) == json.dumps(two)


def test_json_does_not_contain_the_program():
    holder = verdict(saved=object())

    assert to_dict(report(holder)) == to_dict(report(verdict()))


def test_the_data_shares_nothing_with_the_report():
    sample = full_report()

    to_dict(sample)["versions"]["torch"] = "other"
    to_dict(sample)["targets"][0]["summary"]["operators"].clear()

    assert to_dict(sample) == to_dict(full_report())
