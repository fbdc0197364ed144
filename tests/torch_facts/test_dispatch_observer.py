"""What `dispatch_observer` relies on: who asks for `dispatch`, and what a dispatch mode sees."""

from __future__ import annotations

import pytest
import torch
from torch._higher_order_ops.scan import scan

from fakexport._torch.emulation.fake_tensors import new_fake_mode
from fakexport._torch.tracing.dispatch_observer import kernels_observed, observe, observed

LIFT = torch.ops.aten.lift_fresh.default


class Notes:
    def __init__(self):
        self.calls = []

    @property
    def operators(self):
        return [str(operator) for operator, *_ in self.calls if not str(operator).startswith("prim.")]

    def __call__(self, run, operator, args, kwargs):
        self.calls.append((operator, args, kwargs))
        return run()


def test_a_mode_asks_its_instance_for_dispatch_also_outside_of_it_and_after_another_observer():
    mode, always, sometimes = new_fake_mode(), Notes(), Notes()
    observe(mode, always)

    with mode, observed(mode, sometimes):
        weight = torch.ones(2)
    weight.add_(1)

    assert sometimes.operators == ["aten.ones.default"]
    assert always.operators == ["aten.add_.Tensor"]


def test_operators_inside_of_an_operator_are_not_seen():
    mode, notes = new_fake_mode(), Notes()

    with mode, observed(mode, notes):
        torch.nn.functional.gelu(torch.ones(2), approximate="tanh")
        torch.logaddexp(torch.ones(2), torch.ones(2))

    assert len(notes.operators) == 5


def test_the_observer_may_answer_and_the_mode_is_as_before_after_an_error():
    mode = new_fake_mode()

    def answer(run, operator, args, kwargs):
        return 7.0 if "scalar" in str(operator) else run()

    with mode, observed(mode, answer):
        assert torch.ones(2).sum().item() == 7.0
    with pytest.raises(ZeroDivisionError), mode, observed(mode, answer):
        raise ZeroDivisionError

    assert "dispatch" not in vars(mode)


@pytest.mark.parametrize(
    ("make", "kwargs"),
    [
        (lambda: torch.Tensor(3), {"dtype", "layout", "device"}),
        (lambda: torch.FloatTensor(2, 3), {"dtype", "layout", "device"}),
        (lambda: torch.empty(3), {"device", "pin_memory"}),
        (lambda: torch.empty(3, dtype=torch.half), {"dtype", "device", "pin_memory"}),
    ],
)
def test_only_legacy_constructors_say_nothing_about_pinned_memory(make, kwargs):
    mode, notes = new_fake_mode(), Notes()

    with mode, observed(mode, notes), torch.device("meta"):
        make()

    ((_, _, given),) = notes.calls
    assert {*given, "device"} == kwargs


@pytest.mark.parametrize("make", [torch.tensor, torch.FloatTensor, torch.as_tensor])
def test_a_literal_arrives_as_a_lift_of_a_real_tensor(make):
    mode, notes = new_fake_mode(), Notes()

    with mode, observed(mode, notes):
        make([1.0, 2.0])

    assert [type(args[0]) for operator, args, _ in notes.calls if operator is LIFT] == [torch.Tensor]


def test_each_kernel_is_seen_with_the_very_tensors_that_it_takes_and_gives():
    seen = []
    one, other = (torch.empty(2, 3, device="meta") for _ in range(2))

    def note(kernel, args, kwargs, run):
        result = run(*args, **kwargs)
        seen.append((kernel.name(), args, result))
        return result

    with kernels_observed(note):
        stacked = torch.stack([one, other])
        left, right = stacked.transpose(1, 2).contiguous().chunk(2)
    torch.stack([one, other])

    names = [name for name, _, _ in seen]
    assert names == ["aten::stack", "aten::transpose.int", "aten::clone", "aten::split.Tensor"]
    assert seen[0][1][0][0] is one
    assert seen[0][2] is stacked is seen[1][1][0]
    assert seen[3][2][0] is left
    assert seen[3][2][1] is right


def test_what_the_observer_of_kernels_returns_is_the_result():
    one = torch.ones(())

    with kernels_observed(lambda kernel, args, kwargs, run: run(args[0], 3)):
        product = one * 2

    assert product.item() == 3


def test_the_branch_that_a_condition_takes_is_seen_and_other_higher_order_operators_run_unseen():
    seen = []

    def note(kernel, args, kwargs, run):
        seen.append(str(kernel))
        return run(*args, **kwargs)

    value = torch.ones(3)
    with torch.no_grad(), kernels_observed(note):
        cosine = torch.cond(value.sum() < 0, torch.sin, torch.cos, (value,))
        total, _ = scan(lambda total, x: (total + x, total * x), torch.zeros(3), torch.ones(2, 3), dim=0)

    assert "aten.cos.default" in seen
    assert "aten.sin.default" not in seen
    assert torch.equal(cosine, value.cos())
    assert torch.equal(total, torch.full((3,), 2.0))
