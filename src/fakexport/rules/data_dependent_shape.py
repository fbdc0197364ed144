"""FE301: a size that only the data can give must be known."""

from fakexport.rules.rule import Rule

RULE = Rule(
    code="FE301",
    name="data_dependent_shape",
    severity="error",
    message="the capture must know a size that only the data can give",
    why="""
An operator such as `nonzero`, a boolean mask `x[x > 0]`, `unique` or `repeat_interleave` gives a tensor whose
size depends on values. The capture carries that size as an unknown number, and many operators accept it. Some
need to know more than that: `split` and a loop over rows must know how many parts there are, a comparison of
the size must know its outcome. There the program would be another one for each input, and the capture stops.
""",
    how_to_repair="""
Keep the shape fixed and mark the elements that count: `torch.where` in place of a boolean mask, `topk` with a
fixed number in place of `nonzero`. If the size is unknown but bounded, tell the capture what you know with
`torch._check(n <= limit)`, and use operators that do not need the exact size.
""",
    failing_model="""
import torch
from torch import nn


class Pairs(nn.Module):
    def forward(self, x):
        kept = x[x > 0]
        pairs = kept.split(2)  # <- FE301
        return sum(pair.sum() for pair in pairs)


def factory():
    return Pairs(), (torch.randn(8),)
""",
    repaired_model="""
import torch
from torch import nn


class Pairs(nn.Module):
    def forward(self, x):
        kept = torch.where(x > 0, x, 0)
        pairs = kept.split(2)
        return sum(pair.sum() for pair in pairs)


def factory():
    return Pairs(), (torch.randn(8),)
""",
    fails_on="capture",
    links=("https://docs.pytorch.org/docs/stable/export.programming_model.html",),
    exportdb=("torch.dynamic-shape",),
)
