"""Medians, quartiles, and times as text."""

import statistics

import pytest

from fakexport.report import Spread, duration_text, latency_text


def test_one_odd_measurement_moves_little():
    calm = Spread.of([1.0, 1.1, 1.2, 1.3, 1.4])
    disturbed = Spread.of([1.0, 1.1, 1.2, 1.3, 100.0])

    assert disturbed == calm


def test_the_median_is_that_of_the_standard_library():
    values = [3.0, 9.0, 1.0, 4.0]

    assert Spread.of(values).median == statistics.median(values)
    assert Spread.of([2.0]) == Spread(2.0, 2.0, 2.0, 1)


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0.0, "0.00 us"),
        (85.12e-6, "85.1 us"),
        (999.4e-6, "999 us"),
        (999.6e-6, "1.00 ms"),
        (9.996e-3, "10.0 ms"),
        (0.9996, "1.00 s"),
        (125.4, "125 s"),
    ],
)
def test_a_time_has_three_digits_that_count(seconds, text):
    assert duration_text(seconds) == text


def test_quartiles_share_their_unit_where_they_have_one():
    assert latency_text(Spread(1.24e-3, 1.2e-3, 1.31e-3, 20)) == "1.24 ms (1.20 to 1.31 ms, 20 calls)"
    assert latency_text(Spread(1e-3, 9e-4, 1.5e-3, 1)) == "1.00 ms (900 us to 1.50 ms, 1 call)"
