"""Where stages begin, and what a report says of them."""

from __future__ import annotations

import itertools

import pytest
import torch
from torch import nn

import fakexport as fe
from fakexport.emulation.devices import Topology
from fakexport.planning.stages import _Costs, _places, balanced_starts
from fakexport.report import PlannedPoint, render_plan


class Uneven(nn.Module):
    """Blocks of very different widths."""

    def __init__(self, widths: list[int]) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(
            nn.Sequential(nn.Linear(64, width), nn.ReLU(), nn.Linear(width, 64)) for width in widths
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for block in self.blocks:
            x = block(x)
        return x


WIDTHS = [800, 100, 100, 2000, 300, 700, 50, 900, 400]


@pytest.fixture(scope="module")
def program() -> torch.export.ExportedProgram:
    return fe.export(lambda: Uneven(WIDTHS), (torch.zeros(4, 64),), target="4xH100")


@pytest.mark.parametrize("count", [2, 3, 4, 6])
def test_no_other_cut_has_a_faster_slowest_stage(program, count):
    topology = Topology.parse("4xH100")
    places = _places(program, count)
    costs = _Costs(program, topology, [0, *places.values()])

    starts = balanced_starts(program, count, topology)

    def slowest(cut: tuple[int, ...]) -> float:
        ends = (0, *cut, len(places) + 1)
        return max(costs.of(start, end)[1] for start, end in itertools.pairwise(ends))

    chosen = tuple(list(places).index(start) + 1 for start in starts)
    every = itertools.combinations(range(1, len(places) + 1), count - 1)
    assert slowest(chosen) == min(map(slowest, every))
    assert slowest(chosen) > 0


def test_stages_begin_at_blocks_and_not_inside_them(program):
    assert list(_places(program, 3)) == [f"blocks.{number}" for number in range(1, 9)]


def test_modules_are_places_if_there_are_too_few_blocks(program):
    starts = balanced_starts(program, 12, Topology.parse("4xH100"))

    assert len(set(starts)) == 11
    assert {"blocks.0.1", "blocks.0.2"} & set(starts)


def test_a_stage_that_fits_into_memory_is_better_than_a_faster_one():
    # Embeddings are large, but a call reads a few of their rows.
    def factory() -> nn.Module:
        table = nn.Embedding(300_000_000, 64)  # 71.5 GiB
        return nn.Sequential(table, *(nn.Linear(64, 64) for _ in range(3)), nn.Linear(64, 80_000_000))

    program = fe.export(factory, (torch.zeros(2, 3, dtype=torch.long),), target="2xH100")

    (start,) = balanced_starts(program, 2, Topology.parse("2xH100"))

    sizes = [
        sum(w.numel() * 4 for w in s.state_dict.values()) for s in fe.split(program, at=[start]).values()
    ]
    assert max(sizes) < 75 * 2**30


def test_the_table_of_a_check():
    report = fe.check(
        lambda: Uneven(WIDTHS), (torch.zeros(4, 64),), target="3xH100", parallel="pp=3,at=blocks.2,blocks.6"
    )
    summary = report.verdicts[0].stages
    text = str(report)

    assert report.is_clean
    assert [(stage.stage, stage.start) for stage in summary.stages] == [
        (0, ""),
        (1, "blocks.2"),
        (2, "blocks.6"),
    ]
    assert [stage.nodes for stage in summary.stages] == [6, 12, 9]
    weights = [sum(129 * width + 64 for width in part) * 4 for part in (WIDTHS[:2], WIDTHS[2:6], WIDTHS[6:])]
    assert [stage.weight_bytes for stage in summary.stages] == weights
    (received,) = summary.stages[2].received
    assert (received.source, received.shape, received.bytes) == (1, ("4", "64"), 1024)
    assert "3xH100: 3 stages" in text
    assert f"stage 2 takes {received.name}, float32[4, 64], 1.0 KiB, from stage 1" in text
    assert "3 x " in text  # The weights of each stage, in the table of verdicts.


def test_a_cut_that_is_rejected_is_a_diagnostic_at_both_lines():
    class Keeps(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = nn.ModuleList(nn.Linear(8, 8) for _ in range(2))
            self.register_buffer("state", torch.zeros(8))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            x = self.layers[0](x)
            self.state.add_(x.sum(0))
            return self.layers[1](x) + self.state

    report = fe.check(Keeps, (torch.zeros(2, 8),), target="2xH100", parallel="pp=2")
    found = [each for each in report.diagnostics if each.code == "FE407"]

    assert not report.verdicts[0].is_exportable
    assert [label.span.line for label in found[0].labels] == sorted(
        label.span.line for label in found[0].labels
    )
    assert "writes in place to memory that stage 1 uses" in found[0].notes[0]
    assert "self.state.add_(x.sum(0))" in str(report)


def test_memory_is_that_of_a_stage():
    def factory() -> nn.Module:
        return nn.Sequential(*(nn.Linear(70_000, 70_000) for _ in range(4)))  # 73 GiB in all

    row = (torch.zeros(1, 70_000),)
    whole = fe.check(factory, row, target="2xL40S")
    staged = fe.check(factory, row, target="2xL40S", parallel="pp=2")

    assert [each.code for each in whole.diagnostics] == ["FE503"]
    assert [each.code for each in staged.diagnostics] == []
    assert staged.verdicts[0].memory_left["cuda:0"] > 0


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"target": "2xH100", "parallel": "pp=3"}, "pp=3 requires 3 devices"),
        ({"target": "8xH100", "parallel": "pp=3,at=blocks.1"}, "needs 2 modules after at=, got 1"),
        ({"target": "8xH100", "parallel": "pp=2,at=block.1"}, "did you mean blocks.1"),
        ({"target": "8xH100", "parallel": "pp=2", "rank": 0}, "a rank requires --parallel"),
    ],
)
def test_a_bad_request_is_one_line(options, match):
    with pytest.raises(ValueError, match=match) as raised:
        fe.check(lambda: Uneven(WIDTHS), (torch.zeros(4, 64),), **options)

    assert "\n" not in str(raised.value)


def test_a_program_is_cut_after_its_export():
    with pytest.raises(ValueError, match=r"`fe\.split`"):
        fe.export(lambda: Uneven(WIDTHS), (torch.zeros(4, 64),), target="2xH100", parallel="pp=2")


def test_a_plan_has_a_row_for_each_stage():
    report = fe.plan(
        lambda: (Uneven([512] * 4), (torch.zeros(8, 64),)), target="2xH100", parallel="pp=2", batch=[8, 1024]
    )
    small, large = report.points

    assert [device.name for device in large.devices] == ["stage 0", "stage 1"]
    assert [device.weights for device in large.devices] == [2 * (129 * 512 + 64) * 4] * 2
    assert large.devices[1].activations == 128 * small.devices[1].activations
    assert large.devices[1].inputs == 1024 * 64 * 4  # What it receives.
    assert "devices wait for 50% of the time with 1 microbatch of these sizes" in " ".join(
        render_plan(report).split()
    )


@pytest.mark.parametrize(
    ("seconds", "shares"),
    [
        ([1.0, 1.0, 1.0, 1.0], {1: 3 / 4, 4: 3 / 7, 16: 3 / 19}),
        ([1.0, 3.0], {1: 1 / 2, 2: 1 - 2 * 4 / (2 * 7), 8: 1 - 8 * 4 / (2 * 25)}),
    ],
)
def test_the_share_of_time_in_which_devices_wait(seconds, shares):
    point = PlannedPoint(1, 1, {}, (), stage_seconds=tuple(seconds))

    assert point.idle_shares == pytest.approx(shares)
