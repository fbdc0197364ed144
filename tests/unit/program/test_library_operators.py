"""Which operators and classes of a program torch does not have."""

import pytest
import torch
from torch import nn

from fakexport.capture import export
from fakexport.program import library_classes, library_operators


@pytest.fixture(scope="module")
def operators():
    with torch.library._scoped_library("library_operators_test", "DEF") as library:
        for name in ("twice", "half"):
            library.define(f"{name}(Tensor x) -> Tensor")
            library.impl(name, lambda x: x + x, "CompositeExplicitAutograd")
            torch.library.register_fake(f"library_operators_test::{name}", torch.empty_like, lib=library)
        yield torch.ops.library_operators_test


class Branching(nn.Module):
    """Calls one operator twice, and another in a branch."""

    def __init__(self, operators):
        super().__init__()
        self.operators = operators

    def forward(self, x):
        x = self.operators.twice(self.operators.twice(x))
        return torch.cond(x.sum() > 0, lambda x: self.operators.half(x), lambda x: x + 1, (x,))


def test_each_operator_is_named_once_those_of_branches_too(operators):
    program = export(lambda: Branching(operators), (torch.ones(3),))

    assert library_operators(program) == (
        "library_operators_test.half.default",
        "library_operators_test.twice.default",
    )


def test_operators_of_torch_need_no_library():
    program = export(lambda: nn.MultiheadAttention(8, 2), (torch.ones(3, 8),) * 3)

    assert library_operators(program) == ()
    assert library_classes(program) == ()
