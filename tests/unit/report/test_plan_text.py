"""The text of a plan: what fits, by how much, and where the peak is."""

from dataclasses import replace

import pytest

from fakexport.report import PlannedPoint, render_plan
from tests.unit.report.sample_plan import GIB, sample_device, sample_plan


@pytest.mark.parametrize(
    ("memory", "fit"),
    [
        (80 * GIB, "fits"),
        (72 * GIB + GIB // 3 + 4096, "may not fit"),
        (72 * GIB, "does not fit"),
        (None, "unknown"),
    ],
)
def test_fit_depends_on_the_bounds_of_the_headroom(memory, fit):
    device = sample_device(memory=memory)

    assert device.fit == fit
    assert PlannedPoint(1, None, {}, (sample_device(), device)).fit == ("fits" if fit == "unknown" else fit)


def test_headroom_assumes_the_largest_overheads():
    text = render_plan(sample_plan(sample_device()), width=110)

    assert "fits, with at least 7.5 GiB to spare" in text


def test_a_window_that_was_assumed_is_named():
    plan = sample_plan()
    point = replace(plan.points[0], windows={"cache_0.2": 128, "cache_1.2": 128, "cache_2.2": 64})

    text = render_plan(replace(plan, points=(point,)), width=110)

    assert (
        "cache_0.2 and 1 more are assumed to be a sliding window of 128 tokens, as in the example inputs\n"
        in text
    )
    assert "cache_2.2 is assumed to be a sliding window of 64 tokens, as in the example inputs\n" in text


def test_eager_mode_has_its_own_columns_and_verdict():
    plan = sample_plan(sample_device(temporaries=0))
    point = replace(plan.points[0], eager=(sample_device(activations=20 * GIB),))

    text = render_plan(replace(plan, points=(point,)), width=110)

    assert point.fit == "does not fit"
    verdict = (
        "the program fits, with at least 8.5 GiB to spare; eager mode does not fit: cuda:0 lacks 3.5 GiB"
    )
    assert verdict in " ".join(text.split())
    rows = {line.split("  ")[1]: line.split()[-4:] for line in text.splitlines() if line.startswith("  ")}
    assert rows["activations"] == ["9.0", "GiB", "20.0", "GiB"]
    assert rows["temporaries"] == ["0", "B", "1.0", "GiB"]
    assert "  module() cuda:0 H100-80GB  eager cuda:0 H100-80GB\n" in text
    assert "peak of cuda:0 in eager mode: aten.mul.Tensor in layers.3.mlp at model.py:12" in text


def test_no_line_is_wider_than_asked_except_for_single_words():
    long = replace(sample_plan(), device_map="layers.0=cuda:0," * 20)

    lines = render_plan(long, width=80).splitlines()

    assert max(len(line) for line in lines if "layers.0" not in line and "[" not in line) <= 80
