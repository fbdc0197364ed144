"""FE304: two dynamic dimensions must be equal."""

from fakexport.rules.rule import Rule

RULE = Rule(
    code="FE304",
    name="dims_must_be_equal",
    severity="error",
    message="dynamic dimensions must be equal, their ranges differ",
    why="""
You declared two dimensions dynamic, each with its own range, and the model needs them to have the same
size: it adds, concatenates or multiplies the tensors. The trace adds a guard that they are equal, so the
exported program has one symbol for both. That is less than you declared: inputs whose sizes differ are
refused, and so are sizes that only one of the ranges contains.
""",
    how_to_repair="""
Declare the same range for both. If the sizes are meant to differ, change how the marked line combines the
tensors: pad, slice one to the size of the other, or broadcast over a dimension of size 1.
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
    repair="""
-        return x + y
+        return x.sum(0) + y
""",
    fails_on="never",
    dynamic={"x.0": "2..16", "y.0": "2..32"},
)
