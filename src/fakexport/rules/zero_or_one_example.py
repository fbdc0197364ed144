"""FE303: an example size of 0 or 1 fixes a dimension."""

from fakexport.rules.rule import Rule

RULE = Rule(
    code="FE303",
    name="zero_or_one_example",
    severity="error",
    message="an example size of 0 or 1 fixes a dynamic dimension",
    why="""
You declared a dimension dynamic, and the example input has the size 0 or 1 there. These two sizes have
rules of their own in torch, broadcasting and emptiness: a trace with them is right for them only. The
capture therefore treats such a dimension as fixed, and then refuses the declaration. The model is not at
fault.
""",
    how_to_repair="""
Give an example of another size, 2 or more, with `--input` or from the factory. A program that was captured
so takes the sizes 0 and 1 too, without a check: it is right for them unless the model or an operator has
another way for them, and `fakexport check` says so where the declared range begins there. If the size is
always 1, do not declare the dimension.
""",
    failing_model="""
import torch
from torch import nn


class Shift(nn.Module):
    def forward(self, x):
        return x + 1


def factory():
    return Shift(), (torch.randn(1, 8),)  # <- FE303
""",
    repaired_model="""
import torch
from torch import nn


class Shift(nn.Module):
    def forward(self, x):
        return x + 1


def factory():
    return Shift(), (torch.randn(2, 8),)
""",
    fails_on="capture",
    dynamic={"x.0": "1..64"},
    fault="inputs",
    links=("https://docs.pytorch.org/docs/stable/export.programming_model.html",),
)
