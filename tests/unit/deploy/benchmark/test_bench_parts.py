"""What the benchmark is made of: comparing, sizes, turns, memory, processes."""

from __future__ import annotations

import math
import sys
from pathlib import Path

import pytest
import torch

from fakexport.deploy.benchmark import bench
from fakexport.deploy.benchmark.benchmark import run_part
from fakexport.deploy.benchmark.model import Inputs, Request
from fakexport.deploy.benchmark.outcome import Outcome, StepFailed
from fakexport.deploy.benchmark.reference import in_other_sizes
from fakexport.deploy.benchmark.worker import OtherOutputs, agreement, hidden, in_turns
from fakexport.models import packages_of, parse_dynamic

MODELS = Path(__file__).with_name("bench_models.py")
INF, NAN = math.inf, math.nan


@pytest.mark.parametrize(
    ("expected", "found", "difference", "is_equal"),
    [
        ([1.0, 2.0], [1.0, 2.0], 0.0, True),
        ([1.0, 1000.0], [1.0, 1000.125], 0.125, True),
        ([1.0, 1.0], [1.0, 1.125], 0.125, False),
        ([NAN, INF, -INF], [NAN, INF, -INF], 0.0, True),
        ([NAN, 1.0], [0.0, 1.0], INF, False),
        ([INF, 1.0], [-INF, 1.0], INF, False),
        ([], [], 0.0, True),
        ([1000], [1001], 1.0, False),
        ([True], [False], 1.0, False),
        ([1 + 2j], [1 - 2j], 4.0, False),
    ],
)
def test_rounding_is_measured_by_the_largest_number(expected, found, difference, is_equal):
    agreed = agreement([torch.tensor(expected)], [torch.tensor(found)])

    assert (agreed.difference, agreed.is_equal) == (difference, is_equal)


@pytest.mark.parametrize("found", [[], [torch.zeros(3)], [torch.zeros(2, dtype=torch.float64)]])
def test_other_outputs_are_said_to_be_others(found):
    with pytest.raises(OtherOutputs, match=r"; eager returns float32\[2\]$"):
        agreement([torch.zeros(2)], found)


def shapes(inputs):
    return None if inputs is None else {name: tuple(tensor.shape) for name, tensor in inputs.items()}


def text(batch: int, length: int) -> dict[str, torch.Tensor]:
    return {"ids": torch.zeros(batch, length), "mask": torch.ones(batch, length)}


@pytest.mark.parametrize(
    ("dynamic", "most", "expected"),
    [
        (["ids.1"], 99, (2, 17)),
        (["ids.1=2..16"], 99, (2, 15)),
        (["ids.1=12..20"], 14, (2, 13)),
        (["auto"], 99, (3, 17)),
        (["ids.0", "ids.1"], 99, (3, 17)),
        (["ids.1"], 12, (2, 8)),
        (["ids.1=16..20"], 16, None),
    ],
)
def test_sizes_change_together_within_their_range_and_the_models(dynamic, most, expected):
    def works(inputs):
        return inputs["ids"].shape == inputs["mask"].shape and inputs["ids"].shape[1] <= most

    found = in_other_sizes(text(2, 16), parse_dynamic(dynamic), works)

    assert shapes(found) == (None if expected is None else {"ids": expected, "mask": expected})


def test_a_size_that_is_the_models_own_stays():
    """A batch of 8 beside 8 features."""

    def works(inputs):
        return inputs["x"].shape[1] == 8

    inputs = {"x": torch.arange(64.0).reshape(8, 8), "flag": True}
    declared = in_other_sizes(inputs, parse_dynamic("x.0"), works)
    automatic = in_other_sizes({"x": inputs["x"]}, parse_dynamic("auto"), works)

    assert declared["x"].shape == automatic["x"].shape == (9, 8)
    assert declared["flag"] is True
    assert torch.equal(declared["x"][:8], inputs["x"])
    assert torch.equal(declared["x"][8], inputs["x"][0])


def test_calls_take_turns_and_each_comes_first_in_turn():
    order: list[str] = []

    def call(name):
        return lambda inputs: order.append(name) or inputs.values["x"].add_(1)

    inputs = Inputs({"x": torch.zeros(2)})
    first, second = in_turns((call("a"), call("b")), inputs, warmup=1, repeat=3)

    assert "".join(order) == "abbaabba"
    assert len(first) == len(second) == 3
    assert torch.equal(inputs.values["x"], torch.zeros(2))


def test_a_hidden_package_is_absent_and_comes_back():
    sys.modules.pop("chunk_of_no_one", None)
    sys.modules.pop("this", None)

    with hidden(["this", "torch"]), pytest.raises(ModuleNotFoundError) as caught:
        import this  # noqa: F401

    assert caught.value.name == "this"
    assert "this" not in sys.modules
    assert sys.modules["torch"] is torch


def test_an_outcome_is_in_its_file_at_each_moment(tmp_path: Path):
    outcome = Outcome(tmp_path / "outcome.json")

    def load():
        with outcome.during("load"):
            outcome.note(load_s=1.0)
            assert Outcome(tmp_path / "outcome.json").step == "load"
            raise RuntimeError("no <f at 0x7f3f1583f9c0>\nsecond line")

    with pytest.raises(StepFailed):
        load()

    read = Outcome(tmp_path / "outcome.json")
    assert read.step is None
    assert read.facts == {"load_s": 1.0}
    assert [(each.step, each.reason) for each in read.failures] == [("load", "RuntimeError: no <f>")]


def test_a_missing_extra_is_told_with_what_installs_it(tmp_path: Path):
    outcome = Outcome(tmp_path / "outcome.json")

    with pytest.raises(StepFailed), outcome.during("make"):
        raise ModuleNotFoundError("No module named 'onnxscript'", name="onnxscript")

    (failure,) = outcome.failures
    assert failure.reason == "onnxscript is not installed: pip install " + packages_of("onnx")


def test_a_hidden_package_is_not_said_to_be_missing(tmp_path: Path):
    outcome = Outcome(tmp_path / "outcome.json")
    error = ModuleNotFoundError("import of timm halted; None in sys.modules", name="timm")

    with hidden(["timm"]), pytest.raises(StepFailed), outcome.during("load"):
        raise error

    assert outcome.failures[0].reason == f"ModuleNotFoundError: {error}"


def test_a_process_that_takes_too_long_is_ended(tmp_path: Path):
    Request(f"{MODELS}:slow").write(tmp_path)

    outcome, why = run_part(tmp_path, "reference", timeout_s=0.5)

    assert outcome.facts == {}
    assert why is not None
    assert why.reason == "timed out after 0.5 s"


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"modes": ["tensorrt"]}, "unknown mode 'tensorrt'; the modes are eager, weights, torchscript-trace"),
        ({"modes": ["eager", "eager"]}, "each mode only once"),
        ({"modes": []}, "at least one"),
        ({"inputs": ["x"]}, "does not have the form"),
        ({"dynamic_shapes": ["x"]}, "invalid dynamic dimension"),
    ],
)
def test_a_wrong_call_is_refused_before_any_process(options, reason):
    with pytest.raises(ValueError, match=reason):
        bench(f"{MODELS}:mlp", **options)
