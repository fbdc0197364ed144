"""Numbers as people read them."""

import pytest

from fakexport.report.quantity import bytes_text, device_names, elements_text, plural, rate_text, seconds_text


@pytest.mark.parametrize(
    ("size", "text"),
    [
        (0, "0 B"),
        (1023, "1023 B"),
        (1024, "1.0 KiB"),
        (1024**2 - 1, "1.0 MiB"),  # not 1,024.0 KiB
        (94 * 1024**3 + 512 * 1024**2, "94.5 GiB"),
        (3 * 1024**6, "3,072.0 PiB"),
    ],
)
def test_bytes_have_a_binary_unit(size, text):
    assert bytes_text(size) == text


@pytest.mark.parametrize(
    ("count", "text"),
    [(0, "0"), (9_999, "9,999"), (10_000, "10.0K"), (999_960, "1.0M"), (405_853_388_800, "405.9B")],
)
def test_parameters_are_counted_as_models_are_named(count, text):
    assert elements_text(count) == text


@pytest.mark.parametrize(
    ("rate", "text"), [(0.0, "0 B/s"), (989.4e12, "989.4 TB/s"), (3.35e12, "3.35 TB/s"), (64e9, "64 GB/s")]
)
def test_rates_have_a_decimal_prefix(rate, text):
    assert rate_text(rate, "B/s") == text


@pytest.mark.parametrize(("duration_s", "text"), [(0.0, "0.00 s"), (35.26, "35.3 s"), (125.4, "125 s")])
def test_times_have_about_three_digits(duration_s, text):
    assert seconds_text(duration_s) == text


def test_one_is_singular():
    assert [plural(count, "error") for count in (0, 1, 1200)] == ["0 errors", "1 error", "1,200 errors"]


@pytest.mark.parametrize(
    ("names", "text"),
    [
        ([], ""),
        (["cpu"], "cpu"),
        (["cuda:10", "cuda:9", "cpu", "cuda:8", "cuda:2"], "cpu, cuda:2, cuda:8..10"),
        (["xpu:0", "cuda:1", "cuda:0", "meta"], "meta, cuda:0..1, xpu:0"),
    ],
)
def test_rows_of_devices_fold(names, text):
    assert device_names(names) == text
