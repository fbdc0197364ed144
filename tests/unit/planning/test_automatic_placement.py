"""`--device-map auto` next to accelerate's own placement, which counts weights alone."""

import sys

import pytest
import torch
from accelerate import infer_auto_device_map
from torch import nn

import fakexport as fe
from fakexport.emulation.devices import load_profiles

WIDTH, LAYERS = 16384, 26
LAYER_BYTES = WIDTH * WIDTH * 2
MEMORY = load_profiles()["T4"].memory_bytes


def layer():
    return nn.Linear(WIDTH, WIDTH, bias=False, dtype=torch.bfloat16)


def factory():
    """26 layers of 512 MiB: most of a T4 with 16 GB, or half of two."""
    layers = nn.Sequential(
        *(nn.Linear(WIDTH, WIDTH, bias=False, dtype=torch.bfloat16) for _ in range(LAYERS))
    )
    return layers, (torch.zeros(2, WIDTH, dtype=torch.bfloat16),)


@pytest.fixture(scope="module")
def accelerates():
    """The map of weights alone."""
    with torch.device("meta"):
        module, _ = factory()
    found = infer_auto_device_map(module, max_memory={0: MEMORY, 1: MEMORY})
    return {path: f"cuda:{device}" for path, device in found.items()}


def planned(device_map, batch):
    report = fe.plan(factory, target="2xT4", device_map=device_map, batch=batch)
    return report.points[0]


def test_weights_alone_are_placed_as_accelerate_places_them(accelerates):
    ours, theirs = planned("auto", 2), planned(accelerates, 2)

    assert theirs.fit == "fits"
    assert [device.weights for device in ours.devices] == [device.weights for device in theirs.devices]


def test_what_a_run_adds_gets_room_where_accelerates_map_runs_out_of_memory(accelerates):
    batch = 2**16  # 2 GiB of activations before each layer, and as much after it.
    ours, theirs = planned("auto", batch), planned(accelerates, batch)

    assert theirs.fit == "does not fit"
    assert ours.fit == "fits"
    assert sum(device.weights for device in ours.devices) == LAYERS * LAYER_BYTES
    assert [device.name for device in ours.devices] == ["cuda:0", "cuda:1"]


def test_gradients_get_room():
    def smaller():
        layers, inputs = factory()
        return layers[:22], inputs

    ours, theirs = (
        fe.plan(smaller, target="2xT4", device_map=device_map, workload="train", optimizer="sgd").points[0]
        for device_map in ("auto", "cuda:0")  # Where accelerate has them: 11 GiB, and as much of gradients.
    )

    assert (theirs.fit, ours.fit) == ("does not fit", "fits")
    assert [device.gradients for device in ours.devices] == [device.weights for device in ours.devices]


def test_the_report_says_where_the_modules_are():
    report = fe.plan(factory, target="2xT4", device_map="auto", batch=2**16)

    assert report.device_map == "auto"
    assert any(text.startswith("--device-map auto: cuda:0 has 0 to ") for text in report.assumptions)


def test_a_placement_that_does_not_fit_is_the_best_of_those_tried():
    assert planned("auto", 2**18).fit == "does not fit"


@pytest.mark.parametrize(
    ("target", "words"),
    [
        ("T4", "the weights alone need more memory than T4 has"),
        ("cpu", "the memory size of cpu is not known"),
    ],
)
def test_what_cannot_be_placed_is_refused_in_one_line(target, words):
    def larger():
        module, inputs = factory()
        return nn.Sequential(
            module, *(nn.Linear(WIDTH, WIDTH, dtype=torch.bfloat16) for _ in range(8))
        ), inputs

    with pytest.raises(ValueError, match=words) as error:
        fe.plan(larger, target=target, device_map="auto")

    assert "\n" not in str(error.value)


def test_without_accelerate_one_line_says_how_to_install_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "accelerate", None)

    with pytest.raises(ValueError, match="--device-map auto needs accelerate"):
        planned("auto", 2)
