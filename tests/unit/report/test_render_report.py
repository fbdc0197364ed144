"""The text form of a report, golden by golden."""

from __future__ import annotations

from dataclasses import replace

import pytest

from fakexport.exporting.capture import Recovered
from fakexport.exporting.interface.program_difference import OperatorDifference
from fakexport.exporting.program.summary import TensorTotals
from fakexport.report import TargetDifference, TargetSpec, render_report
from fakexport.report.difference_listing import difference_listing
from fakexport.report.transfer_listing import transfer_listing
from fakexport.rules.diagnostics import Diagnostic
from tests.unit.report.sample_reports import (
    IDENTICAL,
    UNBOUND,
    everything_differs,
    full_report,
    report,
    summary,
    transfer,
    verdict,
)


def test_the_text_of_a_report_is_the_rendered_report_and_its_repr_one_line() -> None:
    made = full_report()

    assert str(made) == render_report(made).rstrip()
    assert "\n" not in repr(made)
    assert len(repr(made)) < 240  # what pytest shows of a value
    error = next(found for found in made.diagnostics if found.severity == "error")
    assert error.code in repr(made)
    assert repr(made).startswith(f"<Report of {made.source}: ")


def lines(text: str) -> list[str]:
    return text.strip("\n").split("\n")


def parameters(**bytes_per_device: int) -> TensorTotals:
    return TensorTotals(1, 1, {name.replace("_", ":"): size for name, size in bytes_per_device.items()})


NOTHING = TensorTotals(0, 0, {})


def weights_cell(totals: TensorTotals) -> str:
    only = verdict(summary=summary(parameters=totals, buffers=NOTHING, constants=NOTHING, devices=()))
    header, row = render_report(report(only), width=200).splitlines()[3:5]
    start = header.index("weights per device")
    return row[start : header.index("transfers")].strip()


@pytest.mark.parametrize("width", [1, 40, 60, 80, 100, 140])
def test_the_tables_keep_the_width(width):
    text = render_report(full_report(), width=width)

    tables = text.partition("\nDifferences")[0]
    assert max(map(len, tables.splitlines())) <= max(width, 44)  # a line of the header, which is not broken


@pytest.mark.parametrize(
    ("totals", "cell"),
    [
        (NOTHING, "-"),
        (parameters(cpu=880), "880 B"),
        (parameters(cpu=880, cuda_0=80), "cpu 880 B, cuda:0 80 B"),
        (parameters(**{f"cuda_{i}": 2**30 for i in range(8)}), "8 x 1.0 GiB"),
        (parameters(**{f"cuda_{i}": 2**30 for i in range(11)}, cpu=1), "cpu 1 B, cuda:0..10 1.0 GiB"),
        (parameters(cuda_0=1, cuda_1=2, cuda_2=3), "3 x 1 B to 3 B"),
    ],
)
def test_the_weights_of_each_device_in_one_cell(totals, cell):
    assert weights_cell(totals) == cell


def test_state_is_not_counted_as_weights():
    whole, kept = parameters(cuda_0=3 * 2**30), parameters(cuda_0=2**30)
    holding = verdict(summary=summary(parameters=NOTHING, buffers=whole, state=kept, devices=()))
    other = verdict("other", summary=summary(parameters=NOTHING, buffers=whole, devices=()))

    header, first, second = render_report(report(holding, other), width=200).splitlines()[3:6]

    weights, state = header.index("weights per device"), header.index("cache and state")
    cells = [(row[weights:state].strip(), row[state:].split("  ")[0]) for row in (first, second)]
    assert cells == [("2.0 GiB", "1.0 GiB"), ("3.0 GiB", "-")]
    assert "cache and state" not in render_report(report(other), width=200)


def test_uneven_weights_are_listed_below_the_table():
    uneven = summary(parameters=parameters(cuda_0=1, cuda_1=2, cuda_2=2, cuda_3=3), buffers=NOTHING)

    text = render_report(report(verdict(summary=uneven)))

    assert "note: weights: cuda:0 1 B, cuda:1..2 2 B, cuda:3 3 B\n" in text


def test_an_assumption_that_targets_share_is_written_once():
    spec = TargetSpec("a", "a", assumptions=("batch of 2 assumed",))
    verdicts = [verdict(target=replace(spec, name=name)) for name in "abc"]
    other = verdict("d")

    assert "note: batch of 2 assumed\n" in render_report(report(*verdicts))
    assert "note: a, b, c: batch of 2 assumed\n" in render_report(report(*verdicts, other))


def test_many_constants_without_a_value_are_cut_with_a_count():
    unbound = tuple(replace(UNBOUND, name=f"layers.{i}.scale") for i in range(126))

    text = render_report(report(verdict(recovered=Recovered(unbound=unbound))), width=200)

    assert (
        "note: 126 constants have no value, so the program is incomplete: layers.0.scale (FE601), "
        "layers.1.scale (FE601), layers.2.scale (FE601), layers.3.scale (FE601), and 122 more\n"
    ) in text


def test_a_failure_without_a_stage_is_still_a_failure():
    failed = verdict(is_exportable=False, summary=None)

    text = render_report(report(failed, diagnostics=(Diagnostic("FE001", "error", "m"),)))

    assert "cpu+H100  fails " in text
    assert text.endswith("0 of 1 target exports; 1 error, 0 warnings\n")


def test_names_cannot_steer_the_terminal():
    hostile = verdict("\x1b[31mred", transfers=(transfer(module_path="a\nb\x1b[2J"),))

    text = render_report(replace(report(hostile), source="m\rodel"))

    assert not {"\x1b", "\r"} & set(text)
    assert "a\\nb\\x1b[2J" in text


def test_identical_except_for_devices_is_stated():
    found = replace(IDENTICAL, is_identical=False, devices=everything_differs().devices)

    assert difference_listing(TargetDifference("cpu", "H100", found), width=80) == [
        "  cpu -> H100: identical except for devices",
        "    devices      cpu -> cuda:0 in 14 values",
    ]


def test_a_long_list_of_differences_is_cut_with_a_count():
    operators = tuple(OperatorDifference(f"aten.op{i}.default", i, 0) for i in range(1, 31))
    found = replace(IDENTICAL, is_identical=False, is_identical_but_for_devices=False, operators=operators)

    listing = difference_listing(TargetDifference("T4", "H100", found), width=80)

    assert listing[0] == "  T4 -> H100: 9 nodes each"
    assert len(listing) == 1 + 12 + 1
    assert listing[-1].strip() == "and 18 more; --format json lists them all"


def hops(count: int, *, size: int = 65536, line: int = 398) -> list:
    span = replace(transfer().span, line=line)
    return [
        transfer(
            source=f"cuda:{i}", target=f"cuda:{i + 1}", module_path=f"layers.{16 * i}", bytes=size, span=span
        )
        for i in range(count)
    ]


def test_more_than_twenty_transfers_are_folded_by_tensor():
    moved = [*hops(7, size=65536, line=1), *hops(7, size=512, line=2), *hops(7, size=512, line=3)]

    listing = transfer_listing(verdict(transfers=tuple(moved)), width=100)

    assert listing == [
        "  cpu+H100: 21 transfers, 455.0 KiB per call at the example sizes",
        "    7 x  cuda:0 -> ... -> cuda:7  64.0 KiB  float32[s0, 20]  layers.0..96  acme/model.py:1",
        "    7 x  cuda:0 -> ... -> cuda:7  512 B     float32[s0, 20]  layers.0..96  acme/model.py:2",
        "    7 x  cuda:0 -> ... -> cuda:7  512 B     float32[s0, 20]  layers.0..96  acme/model.py:3",
    ]


@pytest.mark.parametrize(
    ("routes", "text"),
    [
        ([("cpu", f"cuda:{i}") for i in range(8)] * 3, "24 x  cpu -> cuda:0..7 "),
        ([("cpu", "cuda:0"), ("cuda:0", "cpu")] * 11, "22 x  cpu -> cuda:0 -> cpu "),
        ([("cpu", "cuda:0"), ("cuda:1", "cpu")] * 11, "22 x  cpu -> cuda:0 and 1 other route "),
        ([("cpu", "cuda:0"), ("cuda:1", "cpu"), ("a", "b")] * 8, "24 x  cpu -> cuda:0 and 2 other routes "),
    ],
)
def test_the_routes_of_folded_transfers(routes, text):
    moved = tuple(transfer(source=source, target=target) for source, target in routes)

    listing = transfer_listing(verdict(transfers=moved), width=100)

    assert text in listing[1]


def test_modules_that_differ_in_two_indices_are_counted():
    moved = tuple(transfer(module_path=f"layers.{i}.experts.{i}") for i in range(21))

    assert "layers.0.experts.0 and 20 others" in transfer_listing(verdict(transfers=moved), width=100)[1]


def test_too_many_different_transfers_are_cut_with_a_count():
    moved = tuple(transfer(bytes=i) for i in range(100))

    listing = transfer_listing(verdict(transfers=moved), width=100)

    assert len(listing) == 1 + 40 + 1
    assert listing[-1].strip() == "and 60 more; --format json lists them all"


def test_place_is_below_the_line_if_it_is_too_wide():
    listing = transfer_listing(verdict(transfers=(transfer(),)), width=50)

    assert listing[1:] == ["    cpu -> cuda:0  240 B  float32[s0, 20]  fc2", "        acme/model.py:7"]
