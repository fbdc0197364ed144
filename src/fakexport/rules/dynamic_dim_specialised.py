"""FE302: a dimension was declared dynamic, and the model needs one size."""

from fakexport.rules.rule import Rule

RULE = Rule(
    code="FE302",
    name="dynamic_dim_specialised",
    severity="error",
    message="the model restricts a dimension that was declared dynamic",
    why="""
You declared a range of sizes for a dimension of an input, and some line of the model works only for one size
of it or for a part of the range: a `reshape` with a number in it, a comparison with a constant, a buffer
whose length was fixed in the constructor. Without the declaration the export would succeed, with that one
size in it, and fail where it is deployed, on the first input of another size.
""",
    how_to_repair="""
Take the size from the tensor in the marked line (`x.shape[0]`, or `-1` in a `reshape`). If the model really
needs that size, declare what it can do: a smaller range, or leave the dimension static.
""",
    failing_model="""
import torch
from torch import nn


class Heads(nn.Module):
    def forward(self, x):
        return x.reshape(4, 2, 4).sum(1)  # <- FE302


def factory():
    return Heads(), (torch.randn(4, 8),)
""",
    repaired_model="""
import torch
from torch import nn


class Heads(nn.Module):
    def forward(self, x):
        return x.reshape(x.shape[0], 2, 4).sum(1)


def factory():
    return Heads(), (torch.randn(4, 8),)
""",
    fails_on="capture",
    dynamic={"x.0": "1..64"},
    links=("https://docs.pytorch.org/docs/stable/export.programming_model.html",),
    exportdb=("torch.dynamic-shape", "python.builtin"),
)
