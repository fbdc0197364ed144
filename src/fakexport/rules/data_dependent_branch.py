"""FE201: a Python branch on the values of a tensor."""

from fakexport.rules.rule import Rule

RULE = Rule(
    code="FE201",
    name="data_dependent_branch",
    severity="error",
    message="a branch depends on the values of a tensor",
    why="""
An `if`, `while`, `and`, `or`, `not` or `assert` asks a tensor whether it is true. A program is one graph for
all inputs, and Python runs only while that graph is captured, when there are no values to decide on. Eager
mode and `torch.compile` hide this: the one has the values, the other falls back to Python. On an accelerator
the line also costs a wait for the device on each call.
""",
    how_to_repair="""
If both sides give tensors of one shape, compute both and choose with `torch.where`. If the sides are
expensive, use `torch.cond`, which puts both into the program. If the decision is really one about the
configuration or a shape, decide on that instead of on the tensor. A check that only helps to find mistakes
can be left out of the exported path.
""",
    failing_model="""
import torch
from torch import nn


class Gate(nn.Module):
    def forward(self, x):
        if x.sum() > 0:  # <- FE201
            return x
        return -x


def factory():
    return Gate(), (torch.randn(4),)
""",
    repaired_model="""
import torch
from torch import nn


class Gate(nn.Module):
    def forward(self, x):
        return torch.where(x.sum() > 0, x, -x)


def factory():
    return Gate(), (torch.randn(4),)
""",
    fails_on="capture",
    links=("https://docs.pytorch.org/docs/stable/cond.html",),
    exportdb=("python.control-flow", "torch.cond"),
)
