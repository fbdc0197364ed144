"""What `autograd_questions` relies on: where a program asks torch for gradients."""

from __future__ import annotations

import pytest
import torch

from fakexport._torch.emulation.fake_tensors import FakeTensorMode
from fakexport._torch.speed.operator_memo import TraceNeeded, autograd_questions

QUESTIONS = {
    "its function": lambda x, y: y.grad_fn,
    "grad": lambda x, y: torch.autograd.grad(y.sum(), x),
    "backward": lambda x, y: y.sum().backward(),
    "jacobian": lambda x, y: torch.autograd.functional.jacobian(lambda z: z * y, x),
}


@pytest.fixture
def tensors():
    with FakeTensorMode():
        x = torch.ones(2, requires_grad=True)
        return x, x * 2


@pytest.mark.parametrize("ask", QUESTIONS.values(), ids=QUESTIONS)
def test_a_question_needs_a_trace_if_a_node_stands_for_others(ask, tensors):
    with autograd_questions(lambda: False):
        ask(*tensors)

    with autograd_questions(lambda: True), pytest.raises(TraceNeeded):
        ask(*tensors)


def test_a_tensor_without_a_function_answers(tensors):
    with autograd_questions(lambda: True):
        assert tensors[0].grad_fn is None


def test_a_model_cannot_catch_it():
    assert not issubclass(TraceNeeded, Exception)
