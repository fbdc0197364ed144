"""FE304: two dimensions must be equal."""

from fakexport.rules.rule import Rule

RULE = Rule(
    code="FE304",
    name="dims_must_be_equal",
    severity="error",
    message="dynamic dimensions that must be equal have different ranges",
    why="""
You declared two dimensions dynamic, each with a range of its own, and the model needs them to have the same
size: it adds the tensors, concatenates or multiplies them. The program has one size for both, and it is
less than what you declared: inputs of different sizes are refused, and so are sizes that are in one of the
ranges only.
""",
    how_to_repair="""
Declare the same range for both. If the sizes are meant to differ, the marked line has to treat the tensors
so: by padding, by slicing one to the size of the other, by broadcasting over a dimension of size 1.
""",
    failing_model="""
import torch
from torch import nn


class Sum(nn.Module):
    def forward(self, x, y):
        return x + y  # <- FE304


def factory():
    return Sum(), (torch.randn(4, 8), torch.randn(4, 8))
""",
    repaired_model="""
import torch
from torch import nn


class Sum(nn.Module):
    def forward(self, x, y):
        return x.sum(0) + y


def factory():
    return Sum(), (torch.randn(4, 8), torch.randn(4, 8))
""",
    fails_on="never",
    dynamic={"x.0": "2..16", "y.0": "2..32"},
)
