"""Programs that divide the sizes of a call among them: each call runs the program for its sizes."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from safetensors.torch import load_file
from torch import nn

import fakexport as fe
from fakexport.checking import Wanted, report_on
from fakexport.exporting.capture import Request
from fakexport.exporting.program import facts_of, keep_facts
from fakexport.files.documents import SizeRange, are_divided

LOW, HIGH = SizeRange("x", 0, 1, 1), SizeRange("x", 0, 2, 8)


class Rows(nn.Module):
    """Multiplies in one branch, and adds in the other; both use the same weight."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.arange(3.0))

    def forward(self, x):
        return x * self.weight if x.shape[0] > 4 else x + self.weight


@pytest.fixture(scope="module")
def bundle():
    request = Request(source=lambda: (Rows(), (torch.zeros(3, 3),)), dynamic_shapes=["x.0=1|2..4|5..16"])
    report = report_on(request, wanted=Wanted(programs=True))
    return fe.Bundle({f"range{i}": verdict.program for i, verdict in enumerate(report.verdicts)})


@pytest.fixture(scope="module")
def weights():
    return {"weight": torch.tensor([2.0, -1.0, 5.0])}


@pytest.fixture(scope="module")
def eager(weights):
    module = Rows()
    module.load_state_dict(weights)
    return module


def check(call, eager):
    for size in range(1, 17):
        x = torch.randn(size, 3)
        torch.testing.assert_close(call({"x": x})["output"], eager(x), rtol=0, atol=0)
    for size in (0, 17):
        with pytest.raises(fe.InputMismatchError, match=rf"`x` has size {size} in dimension 0"):
            call({"x": torch.zeros(size, 3)})
    with pytest.raises(fe.InputMismatchError, match="the input 'x' is missing"):
        call({})
    with pytest.raises(fe.InputMismatchError, match=r"the input 'x' is float32\[\]"):
        call({"x": torch.tensor(1.0)})


def test_an_archive_without_weights_and_one_with_them(bundle, weights, eager, tmp_path):
    fe.save_bundle(bundle, tmp_path / "model.pt2")
    check(fe.open_program(tmp_path / "model.pt2", weights), eager)

    bound = fe.bind(fe.load_bundle(tmp_path / "model.pt2"), weights)
    fe.save_bundle(bound, tmp_path / "bound.pt2")
    check(fe.open_program(tmp_path / "bound.pt2"), eager)
    assert bound["range0"].state_dict["weight"] is bound["range2"].state_dict["weight"]


def test_one_program_can_be_chosen(bundle, weights, tmp_path):
    fe.save_bundle(bundle, tmp_path / "model.pt2")

    call = fe.open_program(tmp_path / "model.pt2", weights, method="range2")

    assert call({"x": torch.ones(5, 3)})["output"].shape == (5, 3)
    with pytest.raises(fe.InputMismatchError):
        call({"x": torch.ones(1, 3)})


def test_run_takes_a_bundle_and_the_arguments_of_forward(bundle, weights, eager):
    bound = fe.bind(bundle, weights)
    x = torch.randn(7, 3)

    assert torch.equal(fe.run(bound, x)["output"], eager(x))
    assert torch.equal(fe.run(bound, {"x": x})["output"], eager(x))


def test_a_bundle_of_other_programs_needs_a_choice(bundle, weights):
    bound = fe.bind(bundle, weights)
    keep_facts(bound["range2"], replace(facts_of(bound["range2"]), sizes=()))

    with pytest.raises(ValueError, match="choose a program of the bundle: its methods are range0, range1"):
        fe.run(bound, torch.zeros(2, 3))


def test_what_overlaps_is_not_divided():
    other = SizeRange("x", 1, 2, 8)

    assert are_divided([(LOW,), (HIGH,)])
    assert are_divided([(LOW, other), (HIGH, other)])
    assert not are_divided([(HIGH,), (SizeRange("x", 0, 8),)])
    assert not are_divided([(LOW,), (other,)])
    assert not are_divided([(HIGH, other), (HIGH, other)])
    assert not are_divided([(), ()])
    assert not are_divided([(LOW,)])


@pytest.mark.slow
def test_compiled_code(bundle, weights, eager, tmp_path):
    """Once with the weights in the file next to the package, once bound later."""
    cache = tmp_path / "cache"
    compiled = fe.compile(fe.bind(bundle, weights), tmp_path / "model.pt2", cache=cache)
    later = fe.compile(bundle, tmp_path / "later.pt2", cache=cache)

    assert later.is_cached
    assert [file.name for file in compiled.files] == ["model.pt2", "model.safetensors"]
    assert load_file(tmp_path / "model.safetensors").keys() == {"weight"}
    check(fe.open_program(tmp_path / "model.pt2", trust=True), eager)
    check(fe.open_program(tmp_path / "later.pt2", weights, trust=True), eager)


def test_a_package_of_several_ranges_has_one_target_and_its_weights_beside(bundle, tmp_path):
    with pytest.raises(ValueError, match="for one target only"):
        fe.compile(bundle, tmp_path / "model.pt2", target=["A100", "H100"])
    with pytest.raises(ValueError, match="pass --weights beside"):
        fe.compile(bundle, tmp_path / "model.pt2", weights="inside")


def test_other_forms_need_one_program(bundle, tmp_path):
    with pytest.raises(ValueError, match="pass one of its programs to compile it to executorch"):
        fe.compile(bundle, tmp_path / "model.pte", to="executorch")
    with pytest.raises(ValueError, match=r"choose a program with --method range0\|range1\|range2"):
        fe.compile(bundle, tmp_path / "model.onnx", to="onnx")


class Counter(nn.Module):
    """Counts the rows of all calls in a buffer that no checkpoint contains."""

    def __init__(self):
        super().__init__()
        self.register_buffer("rows", torch.zeros(()), persistent=False)

    def forward(self, x):
        self.rows.add_(x.shape[0])
        return x + self.rows


@pytest.fixture(scope="module")
def counter():
    request = Request(source=lambda: (Counter(), (torch.zeros(3, 3),)), dynamic_shapes=["x.0=1|2..8"])
    report = report_on(request, wanted=Wanted(programs=True))
    return fe.Bundle({f"range{i}": verdict.program for i, verdict in enumerate(report.verdicts)})


def check_counts(call):
    module = Counter()
    for size in (1, 3, 1, 8, 1):
        x = torch.zeros(size, 3)
        assert torch.equal(call({"x": x})["output"], module(x))


def test_state_is_that_of_all_programs(counter):
    bound = fe.bind(counter, {})

    check_counts(lambda inputs: fe.run(bound, inputs))


def test_programs_that_were_bound_one_by_one_do_not_share_their_state(counter):
    apart = fe.Bundle({method: fe.bind(program, {}) for method, program in counter.items()})

    with pytest.raises(fe.DeployError, match="range0 and range1 each have their own copy of the state rows"):
        fe.run(apart, torch.zeros(1, 3))


@pytest.mark.slow
def test_compiled_codes_share_their_state(counter, tmp_path):
    fe.compile(fe.bind(counter, {}), tmp_path / "model.pt2")

    check_counts(fe.open_program(tmp_path / "model.pt2", trust=True))


class PlainState(nn.Module):
    """Writes two tensors that are neither parameters nor buffers, one in each branch."""

    def __init__(self, is_listed=False):
        super().__init__()
        low, high = torch.zeros(()), torch.zeros(())
        if is_listed:
            self.both = [low, high]
        else:
            self.low, self.high = low, high

    def forward(self, x):
        low, high = getattr(self, "both", None) or (self.low, self.high)
        if x.shape[0] > 4:
            return x + high.add_(1) + low
        return x - low.add_(x.shape[0])


def plain_state(*, is_listed):
    request = Request(
        source=lambda: (PlainState(is_listed), (torch.zeros(3, 3),)), dynamic_shapes=["x.0=2..4|5..8"]
    )
    report = report_on(request, wanted=Wanted(programs=True))
    return fe.Bundle({f"range{i}": verdict.program for i, verdict in enumerate(report.verdicts)})


def test_plain_tensors_that_forward_writes_are_shared(tmp_path):
    fe.save_bundle(fe.bind(plain_state(is_listed=False), {}), tmp_path / "model.pt2")
    call, module = fe.open_program(tmp_path / "model.pt2"), PlainState()

    for size in (5, 2, 6, 3, 8):
        x = torch.zeros(size, 3)
        assert torch.equal(call({"x": x})["output"], module(x))


def test_tensors_of_a_list_that_forward_writes_must_become_buffers(tmp_path):
    bundle = plain_state(is_listed=True)
    wanted = r"range0 and range1 cannot share lifted_tensor_0, .*: make it a buffer of a module"

    with pytest.raises(fe.DeployError, match=wanted):
        fe.run(fe.bind(bundle, {}), torch.zeros(3, 3))
    with pytest.raises(fe.DeployError, match=wanted):
        fe.compile(bundle, tmp_path / "model.pt2")
