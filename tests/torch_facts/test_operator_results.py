"""What `operator_results` relies on: the dispatcher returns what a mode above fake mode answers."""

from __future__ import annotations

import pytest
import torch

from fakexport._torch.emulation.fake_tensors import FakeTensorMode
from fakexport._torch.kernels.kernel_mode import kernel_mode
from fakexport._torch.speed.new_fakes import NewFakes, reserved
from fakexport._torch.speed.operator_results import AnsweredOperator

ATEN = torch.ops.aten


@pytest.fixture
def mode():
    with FakeTensorMode() as made:
        yield made


def prepared(mode, like, memory=None):
    """A tensor as a fake kernel returns it."""
    with kernel_mode(mode):
        data = reserved(64, tuple(like.shape), tuple(like.stride()), 0, like.dtype)
        return NewFakes().new(mode, data.data, torch.device("cpu"), memory)


def test_an_answered_operator_has_the_autograd_of_the_real_one(mode):
    x = torch.ones(2, 3, requires_grad=True)
    real = x.exp()

    answer = prepared(mode, real)
    found = AnsweredOperator()._run(ATEN.exp.default, answer, [x], x)

    assert found is answer
    assert type(found.grad_fn) is type(real.grad_fn)
    assert (found.requires_grad, found.is_leaf, found._version) == (True, False, 0)


def test_an_answered_view_is_a_view_of_its_base(mode):
    x = torch.ones(2, 3)

    found = AnsweredOperator()._run(ATEN.view.default, prepared(mode, x.view(3, 2), x), [x], x, [3, 2])
    found.add_(1)

    assert found._base is x
    assert (x._version, found.shape) == (found._version, (3, 2))


def test_an_alias_may_have_other_sizes_than_its_base(mode):
    """It stands for the view that a composite operator returns."""
    x = torch.ones(2, 3, requires_grad=True) * 1

    found = AnsweredOperator()._run(ATEN.alias.default, prepared(mode, x.t(), x), [x], x)

    assert (found._base is x, found.shape, found.requires_grad) == (True, (3, 2), True)


def test_another_operator_is_computed(mode):
    answers = AnsweredOperator()
    answers._expected, answers._answer = ATEN.exp.default, "wrong"

    with answers:
        assert torch.ones(2).cos().shape == (2,)


def test_the_device_of_a_fake_is_answered_without_fake_mode():
    with FakeTensorMode() as mode:
        x = torch.ones(2)
        x.fake_device = torch.device("cuda:1")
        answers = AnsweredOperator()
        answers._expected = ATEN.exp.default
        torch._C._push_on_torch_dispatch_stack(answers)
        try:
            found = torch.ops.prim.device.default(x)
        finally:
            torch._C._pop_torch_dispatch_stack(None)

    assert found == torch.device("cuda:1")
    assert mode is not None


def test_what_is_made_in_a_kernel_is_no_operator(mode):
    seen = []
    vars(mode)["dispatch"] = lambda *args: seen.append(args)

    with kernel_mode(mode):
        reserved(16, (4,), (1,), 0, torch.float32)

    assert not seen
    assert torch.is_grad_enabled()
    assert not mode.in_kernel_invocation
