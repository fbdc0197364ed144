"""The plan of programs that divide the sizes of a call among them."""

import pytest
import torch
from torch import nn

import fakexport as fe
from fakexport.checking import Wanted, report_on
from fakexport.exporting.capture import Request


class Model(nn.Module):
    """Needs ten times the memory above 8 rows."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(64))

    def forward(self, input_ids):
        made = input_ids[:, None] * self.weight
        return made.repeat(1, 10).sum(1) if input_ids.shape[0] > 8 else made.sum(1)


@pytest.fixture(scope="module")
def archive(tmp_path_factory):
    request = Request(
        source=lambda: (Model(), (torch.zeros(4),)), dynamic_shapes=["input_ids.0=1|2..8|9..64"]
    )
    report = report_on(request, wanted=Wanted(programs=True))
    path = tmp_path_factory.mktemp("plan") / "model.pt2"
    fe.save_bundle({f"range{i}": verdict.program for i, verdict in enumerate(report.verdicts)}, path)
    return str(path)


def test_each_batch_is_planned_with_its_program(archive):
    points = fe.plan(archive, batch=[1, 8, 9, 64]).points

    assert [point.batch for point in points] == [1, 8, 9, 64]
    of_methods = [
        fe.plan(archive, batch=batch, method=method).points[0].devices[0].total
        for batch, method in ((1, "range0"), (8, "range1"), (9, "range2"), (64, "range2"))
    ]
    assert [point.devices[0].total for point in points] == of_methods
    assert points[2].devices[0].total.lower > 5 * points[1].devices[0].total.lower


def test_a_batch_outside_of_all_ranges_is_refused(archive):
    with pytest.raises(ValueError, match=r"input_ids.0 = 65 is outside the range .*: 9\.\.64"):
        fe.plan(archive, batch=65)


def test_without_a_size_the_plan_is_that_of_the_largest_sizes(archive):
    assert fe.plan(archive).points[0].batch == fe.plan(archive, method="range2").points[0].batch
