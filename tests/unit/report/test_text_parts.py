"""Numbers, tables and lists of devices as text."""

import statistics

import pytest

from fakexport.emulation.devices import load_profiles, profile_named
from fakexport.report import Progress, Spread, duration_text, latency_text, render_device, render_devices
from fakexport.report.quantity import bytes_text, device_names, elements_text, plural, rate_text, seconds_text
from fakexport.report.table import layout, wide_layout, wrapped

TEXTS = {
    bytes_text: {
        0: "0 B",
        1023: "1023 B",
        1024: "1.0 KiB",
        1024**2 - 1: "1.0 MiB",  # not 1,024.0 KiB
        94 * 1024**3 + 512 * 1024**2: "94.5 GiB",
        3 * 1024**6: "3,072.0 PiB",
    },
    elements_text: {0: "0", 9_999: "9,999", 10_000: "10.0K", 999_960: "1.0M", 405_853_388_800: "405.9B"},
    rate_text: {0.0: "0 B/s", 989.4e12: "989.4 TB/s", 3.35e12: "3.35 TB/s", 64e9: "64 GB/s"},
    seconds_text: {0.0: "0.00 s", 35.26: "35.3 s", 125.4: "125 s"},
    duration_text: {
        **{0.0: "0.00 us", 85.12e-6: "85.1 us", 999.4e-6: "999 us", 999.6e-6: "1.00 ms"},
        **{9.996e-3: "10.0 ms", 0.9996: "1.00 s", 125.4: "125 s"},
    },
    plural: {0: "0 errors", 1: "1 error", 1200: "1,200 errors"},
    device_names: {
        (): "",
        ("cpu",): "cpu",
        ("cuda:10", "cuda:9", "cpu", "cuda:8", "cuda:2"): "cpu, cuda:2, cuda:8..10",
        ("xpu:0", "cuda:1", "cuda:0", "meta"): "meta, cuda:0..1, xpu:0",
    },
}
MORE = {rate_text: ("B/s",), plural: ("error",)}


@pytest.mark.parametrize("function", TEXTS, ids=lambda function: function.__name__)
def test_text_of_a_number(function):
    cases = TEXTS[function]

    assert {value: function(value, *MORE.get(function, ())) for value in cases} == cases


def test_spread_is_the_median_and_the_quartiles():
    values = [3.0, 9.0, 1.0, 4.0]
    calm, disturbed = (Spread.of([1.0, 1.1, 1.2, 1.3, last]) for last in (1.4, 100.0))

    assert disturbed == calm
    assert Spread.of(values).median == statistics.median(values)
    assert Spread.of([2.0]) == Spread(2.0, 2.0, 2.0, 1)
    assert latency_text(Spread(1.24e-3, 1.2e-3, 1.31e-3, 20)) == "1.24 ms (1.20 to 1.31 ms, 20 calls)"
    assert latency_text(Spread(1e-3, 9e-4, 1.5e-3, 1)) == "1.00 ms (900 us to 1.50 ms, 1 call)"


ROWS = [("target", "nodes", "device"), ("cpu", "1,340", "cpu"), ("H100", "9", "cuda:0")]
TABLES = {
    "aligned, without trailing blanks": (
        layout(ROWS, right=[1], indent="  "),
        ["  target  nodes  device", "  cpu     1,340  cpu", "  H100        9  cuda:0"],
    ),
    "in one piece": (wide_layout(ROWS, width=21, right=[1]), layout(ROWS, right=[1])),
    "split, with the first column again": (
        wide_layout(ROWS, width=20, right=[1]),
        [
            *("target  nodes", "cpu     1,340", "H100        9"),
            *("", "target  device", "cpu     cpu", "H100    cuda:0"),
        ],
    ),
    "column that is too wide": (
        wide_layout([("a", "b" * 50, "c")], width=10),
        [f"a  {'b' * 50}", "", "a  c"],
    ),
    "no rows": (layout([]), wide_layout([], width=80)),
    "long words": (
        wrapped("one aten._grouped_mm.default", 12, first="- ", later="  "),
        ["- one", "  aten._grouped_mm.default"],
    ),
}


@pytest.mark.parametrize("case", TABLES)
def test_columns_and_wrapped_lines(case):
    found, expected = TABLES[case]

    assert found == expected


def test_devices_are_a_table_of_the_published_values():
    header, *rows = render_devices(load_profiles().values(), width=200).splitlines()
    h100 = render_devices([profile_named("H100")])
    cpu = render_devices([profile_named("cpu")]).splitlines()[1]

    assert header.split() == [
        "name",
        "aliases",
        "type",
        "capability",
        "memory",
        "SMs",
        "bf16",
        "peak",
        "bandwidth",
    ]
    assert [row.split()[0] for row in rows] == list(load_profiles())
    assert "H100-80GB  H100, H100-SXM  cuda  9.0" in h100
    assert "79.2 GiB  132  989.4 TFLOP/s  3.35 TB/s" in h100
    assert cpu.split() == ["cpu", "-", "cpu", *"-----"]


@pytest.mark.parametrize("profile", load_profiles().values(), ids=lambda profile: profile.name)
def test_one_profile_has_every_value_and_every_source(profile):
    text = render_device(profile)

    assert text.startswith(profile.name)
    assert f"\n  device_type = {profile.device_type}\n" in text
    assert (
        profile.memory_bytes is None or f"  memory_bytes = {profile.memory_bytes:,}\n      https://" in text
    )
    assert all(f"      {source}\n" in text for source in profile.sources.values())
    assert profile.name != "A10G" or "  peak_flops.int8 = 140 TOP/s\n" in text


@pytest.mark.parametrize(
    ("progress", "fault"),
    [
        ((0, 3, "cpu", "build"), "target_index must be in 1 to 3"),
        ((4, 3, "cpu", "build"), "target_index must be in 1 to 3"),
        ((1, 1, "cpu", "dance"), "step must be one of build, trace, explore, analyse, compare"),
    ],
)
def test_progress_rejects_an_unknown_target_or_step(progress, fault):
    with pytest.raises(ValueError, match=fault):
        Progress(*progress)
