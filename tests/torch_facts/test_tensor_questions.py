"""What a torch function mode sees of questions about tensors, and what torch itself asks in Python."""

from __future__ import annotations

import ast
import inspect
import textwrap

import pytest
import torch
import torch.nn.functional
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode

from fakexport._torch.tracing.tensor_questions import (
    TensorQuestions,
    in_inference_mode,
    inference_mode_questions,
    node_of,
)

ASKS = {
    "requires_grad": "x.requires_grad",
    "is_leaf": "x.is_leaf, x.grad_fn, x.retains_grad",
    "is_view": "x._base, x._is_view()",
    "contiguous": "x.is_contiguous(), x.is_contiguous(memory_format=torch.contiguous_format)",
    "channels_last": "x.is_contiguous(memory_format=torch.channels_last)",
    "channels_last_3d": "y.is_contiguous(memory_format=torch.channels_last_3d)",
    "strides": "x.stride(), x.stride(0), x.dim_order(), x.is_contiguous(memory_format=torch.preserve_format)",
    "offset": "x.storage_offset()",
    "storage": "x.untyped_storage(), x.is_set_to(x)",
    "is_inference": "x.is_inference(), torch.is_inference(x)",
    "is_conj": "x.is_conj(), torch.is_conj(x)",
    "is_neg": "x.is_neg(), torch.is_neg(x)",
}


@pytest.mark.parametrize("asked", ASKS)
def test_a_mode_sees_every_question_about_a_fake_tensor(asked):
    mode = FakeTensorMode()
    names = {
        "torch": torch,
        "x": mode.from_tensor(torch.zeros(1, 2, 3, 4)),
        "y": mode.from_tensor(torch.zeros(1, 1, 1, 2, 3)),
    }
    seen = []

    questions = ASKS[asked].split(", ")
    for question in questions:
        before = len(seen)
        with TensorQuestions(lambda property_, tensor, frame: seen.append(property_), ignored):
            try:
                eval(question, names)
            except RuntimeError:  # `preserve_format` is no question that torch answers.
                assert "preserve_format" in question
        assert seen[before:], question

    assert set(seen) == {asked}
    with TensorQuestions(lambda *asked: seen.append(asked), ignored):
        x = names["x"]
        _ = x.shape, x.dtype, x.ndim, x.size(0), x.numel(), x.device, x + 1  # These are no questions.
    assert set(seen) == {asked}


def ignored(*_):
    pass


@pytest.mark.parametrize(
    ("function", "decides"),
    [
        ("x.contiguous()", "strides"),
        ("x.to(memory_format=torch.contiguous_format)", "strides"),
        ("x.resolve_conj(), torch.resolve_conj(x)", "is_conj"),
        ("x.resolve_neg(), torch.resolve_neg(x)", "is_neg"),
        ("x.to(x.dtype), x.clone(), x.t().contiguous(), x.reshape(-1)", None),
    ],
)
def test_a_mode_sees_functions_that_return_their_argument_instead_of_a_copy(function, decides):
    x, seen = FakeTensorMode().from_tensor(torch.ones(2, 3)), []

    with TensorQuestions(ignored, lambda property_, tensor, frame: seen.append((property_, tensor is x))):
        results = eval(function, {"torch": torch, "x": x})

    count = len(results) if isinstance(results, tuple) else 1
    assert seen == [(decides, True)] * (0 if decides is None else count)


def test_a_tensor_has_a_node_only_during_a_trace():
    nodes = []

    class Model(nn.Module):
        def forward(self, x):
            nodes.append(node_of(x))
            return x * 2

    x = torch.zeros(3)
    torch.export.export(Model(), (x,), strict=False)

    assert [node.op for node in nodes] == ["placeholder"]
    assert node_of(x) is None


def test_questions_for_inference_mode_are_seen():
    frames = []

    with inference_mode_questions(frames.append):
        assert not torch.is_inference_mode_enabled()
        with torch.inference_mode():
            assert torch.is_inference_mode_enabled()

    assert [frame.f_code.co_name for frame in frames] == ["test_questions_for_inference_mode_are_seen"] * 2
    assert torch.is_inference_mode_enabled is in_inference_mode


ASKED_BY_TORCH = {"linear_cross_entropy", "_linear_cross_entropy_chunked_applies"}
"""Functions of `torch.nn.functional` that ask inside of a call, where no mode sees it."""


def test_functions_of_torch_in_python_ask_nothing_of_their_inputs():
    names = {"is_contiguous", "stride", "storage_offset", "is_leaf", "is_conj", "is_neg", "is_inference"}
    found = set()
    for name, function in vars(torch.nn.functional).items():
        if inspect.isfunction(function) and function.__module__ == "torch.nn.functional":
            for node in ast.walk(ast.parse(textwrap.dedent(inspect.getsource(function)))):
                is_call = isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)
                is_asked = is_call and node.func.attr in names
                if is_asked or (isinstance(node, ast.Attribute) and node.attr == "requires_grad"):
                    found.add(name)

    assert found <= ASKED_BY_TORCH
