"""What weights leave of a device's memory, as `check` shows it: no room where it says that there is none."""

import pytest
import torch
from torch import nn

import fakexport as fe
from fakexport.emulation.devices import profile_named
from fakexport.report import render_report, to_dict

GIB = 2**30


class Doubled(nn.Module):
    def __init__(self, gib):
        super().__init__()
        self.weight = nn.Parameter(torch.empty(gib * GIB // 4))

    def forward(self, x):
        return self.weight * x


def checked(gib, **options):
    return fe.check(lambda: (Doubled(gib), (torch.zeros(()),)), **options)


def cells(report):
    """Return the row of the verdict table by the names of its columns."""
    header, row = render_report(report, width=200).splitlines()[3:5]
    starts = [header.index(name) for name in ("memory left", "transfers")]
    return row[starts[0] : starts[1]].strip()


@pytest.mark.parametrize(("gib", "shown"), [(16, "63.2 GiB"), (48, "not enough"), (96, "-16.8 GiB")])
def test_memory_left_excludes_the_weights(gib, shown):
    report = checked(gib, target="H100")

    memory = profile_named("H100").memory_bytes
    assert cells(report) == shown
    assert report.verdicts[0].memory_left == {"cuda:0": memory - gib * GIB}
    assert to_dict(report)["targets"][0]["memory_left"] == {"cuda:0": memory - gib * GIB}


def test_memory_left_is_that_of_the_fullest_device():
    def factory():
        model = nn.Sequential(nn.Linear(65536, 16384, bias=False), nn.Linear(16384, 256))
        return model, (torch.zeros(1, 65536),)

    report = fe.check(factory, target="2xH100", device_map={"0": "cuda:0", "1": "cuda:1"})

    assert cells(report) == "75.2 GiB"
    assert report.verdicts[0].memory_left["cuda:1"] > report.verdicts[0].memory_left["cuda:0"]


def test_the_memory_of_the_host_is_not_assumed():
    report = checked(1, target="cpu")

    assert report.verdicts[0].memory_left == {}
    assert "memory left" not in str(report)
