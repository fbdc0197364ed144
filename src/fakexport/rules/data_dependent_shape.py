"""FE301: torch.export needs a size that is known only at run time."""

from fakexport.rules.rule import Rule

RULE = Rule(
    code="FE301",
    name="data_dependent_shape",
    severity="error",
    message="data-dependent shape: size known only at run time",
    why="""
An operator such as `nonzero`, a boolean mask `x[x > 0]`, `unique` or `repeat_interleave` returns a tensor
whose size depends on values. The trace carries that size as an unbacked SymInt, and many operators accept
it. Some need to know more: `split` and a loop over rows must know how many parts there are, and a
comparison of the size needs its result (torch: `Could not guard on data-dependent expression`).
There the program would be a different one for each input, and the export stops.
""",
    how_to_repair="""
Keep the shape fixed and mark the elements that count: `torch.where` instead of a boolean mask, `topk`
with a fixed number instead of `nonzero`. If the size is unknown but bounded, state the bound with
`torch._check(n <= limit)`, and use operators that do not need the exact size. If it is never 0, write
`torch._check(n > 0)`: torch draws no bound from `n != 0`, and where the first row, `rows[:1]`, is broadcast
over the others, it would write a program that refuses more than one. If a condition on the size has one
answer for every input, `fakexport check ... --assume model.py:8=False` says so without a change of the code,
and the program refuses other inputs.
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
    repair="""
-        kept = x[x > 0]
+        kept = torch.where(x > 0, x, 0)
""",
    fails_on="capture",
    torch_error="Could not guard on data-dependent expression",
    links=("https://docs.pytorch.org/docs/stable/export.programming_model.html",),
    exportdb=("torch.dynamic-shape",),
)
