"""The benchmark as text and as a chart."""

from __future__ import annotations

from xml.etree import ElementTree

import pytest

from fakexport.report import render_bench, render_bench_chart
from tests.unit.report.sample_bench import sample_bench


def test_golden_of_the_text():
    assert render_bench(sample_bench(), width=80) == (
        "model        mlp.py:mlp\n"
        "inputs       x=float32[8,64]\n"
        "other sizes  x=float32[9,64]\n"
        "machine      2 x a processor, 1 thread\n"
        "versions     fakexport 0.1.0, torch 2.13.0, python 3.11.7\n"
        "the model came in training mode and was put into eval mode\n"
        "\n"
        "mode                captures  as eager  dynamic  needs code  difference\n"
        "export              yes       yes       yes      no             1.5e-07\n"
        "torchscript-script  no        -         -        -                    -\n"
        "weights             yes       no        no       yes                inf\n"
        "\n"
        "mode                     size    make     load  first call  latency\n"
        "export              134.2 KiB  410 ms  13.9 ms     1.20 ms   400 us\n"
        "torchscript-script          -       -        -           -        -\n"
        "weights               2.0 KiB  100 ms   200 ms      300 ms        -\n"
        "\n"
        "mode                    quartiles  x eager   memory\n"
        "export              390 to 440 us     1.25  7.5 MiB\n"
        "torchscript-script              -        -        -\n"
        "weights                         -        -  4.0 KiB\n"
        "\n"
        "torchscript-script cannot be exported: RuntimeError: no\n"
        "weights does not keep dynamic shapes: wrong outputs\n"
        "weights is not timed: timed out after 9 s\n"
        "\n"
        "1 of 3 modes match eager up to rounding\n"
    )


def test_the_table_is_one_where_there_is_room():
    assert render_bench(sample_bench(), width=200).count("mode  ") == 1


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
