"""Comparisons with the exact class of a tensor, for which a program goes another way than eager mode."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import fakexport as fe
from fakexport.capture.exact_classes import exact_class_questions

HEAD = """import torch
from torch import nn
from torch import Tensor


def is_tensor(x):
    return False


class Other(nn.Module):
    def forward(self, x):
        return x if type(x) is Tensor else -x


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(4))

    def forward(self, x, scale=2):
        rows, columns = x.shape
        found = x.sum().item()
        if {}:
            return x * 3
        return x


def factory():
    return Model(), (torch.ones(2, 4),)
"""
NUMBERS = [
    "isinstance(x.shape[0], int)",
    "type(x.shape[0]) is int",
    "isinstance(-x.size(0) + 1, (float, int))",
    "isinstance(rows, int)",
    "isinstance(found, float)",
    "isinstance(x.sum().item(), float)",
]
QUESTIONS = [
    "type(x) is torch.Tensor",
    "type(x) == Tensor",
    "type(x * 2) in (torch.Tensor, nn.Parameter)",
    "x.__class__ is torch.Tensor",
    "type(self.weight) is nn.Parameter",
    "not type(x) is not torch.Tensor",
]
OTHERS = [
    "isinstance(x, torch.Tensor)",
    "isinstance(self.weight, nn.Parameter)",
    "type(self) is Model",
    "type(x.shape[0]) is int",
    "isinstance(x.shape[0], (int, torch.SymInt))",
    "isinstance(scale, int)",
    "type(x).__name__ == 'Tensor' and False",
]


@pytest.mark.parametrize("asked", QUESTIONS)
def test_a_question_that_a_trace_answers_otherwise_is_a_warning(asked, tmp_path):
    path = tmp_path / "model.py"
    path.write_text(HEAD.format(asked))

    (found,) = fe.check(f"{path}:factory").diagnostics

    line = HEAD[: HEAD.index("{}")].count("\n") + 1
    assert (found.code, found.severity, found.labels[0].span.line) == ("FE909", "warning", line)
    program = fe.bind(fe.export(f"{path}:factory"), {"weight": torch.ones(4)}).module()
    assert torch.equal(program(torch.ones(4)[None].repeat(2, 1)), torch.ones(2, 4))  # Eager mode: 3.


@pytest.mark.parametrize("asked", NUMBERS)
@pytest.mark.parametrize("sizes", [[], ["x.0"]], ids=["static", "dynamic"])
def test_a_number_of_a_tensor_is_no_int_where_it_is_a_symbol(asked, sizes, tmp_path):
    path = tmp_path / "model.py"
    path.write_text(HEAD.format(asked))
    is_symbol = sizes or "item" in asked or "found" in asked

    found = fe.check(f"{path}:factory", dynamic_shapes=sizes).diagnostics

    assert [each.code for each in found] == (["FE909"] if is_symbol else [])
    bound = fe.bind(fe.export(f"{path}:factory", dynamic_shapes=sizes), {"weight": torch.ones(4)})
    assert bound.module()(torch.ones(2, 4))[0, 0] == (1 if is_symbol else 3)  # Eager mode: 3.


@pytest.mark.parametrize("asked", OTHERS)
def test_another_question_is_not(asked, tmp_path):
    path = tmp_path / "model.py"
    path.write_text(HEAD.format(asked))

    assert fe.check(f"{path}:factory").diagnostics == ()


def test_a_function_of_the_file_counts(tmp_path):
    path = tmp_path / "model.py"
    path.write_text(HEAD.replace("return False", "return type(x) is Tensor").format("is_tensor(x)"))

    (found,) = fe.check(f"{path}:factory").diagnostics

    assert (found.code, found.labels[0].span.function) == ("FE909", "is_tensor")


def test_the_layers_of_torch_are_not_asked():
    assert list(exact_class_questions(nn.TransformerEncoderLayer(8, 2))) == []
