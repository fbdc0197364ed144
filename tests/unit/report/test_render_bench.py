"""The benchmark as text and as a chart."""

from __future__ import annotations

from xml.etree import ElementTree

import pytest

from fakexport.report import render_bench_chart
from tests.unit.report.sample_bench import sample_bench


@pytest.mark.slow
def test_a_chart_has_a_bar_or_a_word_for_each_mode():
    pytest.importorskip("matplotlib")

    drawn = render_bench_chart(sample_bench(), format_="svg")

    texts = {"".join(each.itertext()).strip() for each in ElementTree.fromstring(drawn).iter() if each.text}
    assert {"export", "torchscript-script", "weights", "1.25", "13.9 ms", "134.2 KiB", "7.5 MiB"} <= texts
    assert {"not captured", "fails: time"} <= texts
    assert "(wrong outputs)" in texts


@pytest.mark.parametrize(("format_", "mark"), [("svg", b"<?xml"), ("png", b"\x89PNG")])
def test_the_same_report_gives_the_same_chart(format_, mark):
    pytest.importorskip("matplotlib")

    first, second = (render_bench_chart(sample_bench(), format_=format_) for _ in range(2))

    assert first.startswith(mark)
    assert first == second
