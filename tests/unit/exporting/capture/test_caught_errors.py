"""Operators that raised in code that caught the error are no part of the program; all others are."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import fakexport as fe

OPERATORS = torch.library.Library("caught_errors", "DEF")
OPERATORS.define("write(Tensor(a!) x) -> Tensor?")
OPERATORS.define("note(Tensor x) -> ()")


def write(x):
    x.add_(1)


OPERATORS.impl("write", write, "CompositeExplicitAutograd")
OPERATORS.impl("note", lambda x: None, "CompositeExplicitAutograd")


class Foreach(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("a", torch.zeros(4))
        self.register_buffer("b", torch.ones(4))

    def forward(self, x):
        torch._foreach_add_([self.a, self.b], 1.0)
        torch._foreach_mul_([self.a, self.b], [2.0, 0.5])
        return x * self.a + self.b


class Optional(Foreach):
    def forward(self, x):
        torch.ops.caught_errors.write(self.a)
        torch.ops.caught_errors.note(self.b)
        return x + self.a


class Unused(Foreach):
    def forward(self, x):
        self.a.add_(1)
        torch.add(self.a, 1, out=self.b)
        x.split(2)
        return x


class Raising(Foreach):
    def forward(self, x):
        try:
            x.reshape(5)
        except RuntimeError:
            self.a.add_(1)
        return x + self.a


@pytest.mark.parametrize("model", [Foreach, Optional, Unused, Raising])
def test_a_program_computes_and_writes_what_eager_mode_does(model):
    eager, x = model(), torch.arange(4.0)
    program = fe.export(lambda: (model(), (torch.zeros(4),)))
    bound = fe.bind(program, eager.state_dict()).module()

    for _ in range(2):
        assert torch.equal(bound(x), eager(x))
    assert all(torch.equal(own, dict(bound.named_buffers())[name]) for name, own in eager.named_buffers())


def names_of(program):
    return [str(node.target) for node in program.graph.nodes if node.op == "call_function"]


def test_only_what_raised_is_dropped():
    assert "aten.reshape.default" not in names_of(fe.export(lambda: (Raising(), (torch.zeros(4),))))
    assert "aten.split.Tensor" in names_of(fe.export(lambda: (Unused(), (torch.zeros(4),))))
    assert "caught_errors.note.default" in names_of(fe.export(lambda: (Optional(), (torch.zeros(4),))))
