"""FE302: a dimension was declared dynamic, and the model supports only a part of its range."""

from fakexport.rules.rule import Rule

RULE = Rule(
    code="FE302",
    name="dynamic_dim_specialized",
    severity="error",
    message="model specializes or restricts a dynamic dimension",
    why="""
You declared a range of sizes for a dimension of an input, and some line of the model works for one size
only or for a part of the range: a `reshape` with a hard-coded number, a comparison with a constant, a
buffer whose length was fixed in the constructor. The trace records this as a guard on the dimension, and
torch reports a constraint violation. Without the declaration the export would succeed with that one size
hard-coded, and fail where it is deployed, on the first input of another size.
""",
    how_to_repair="""
Take the size from the tensor in the marked line (`x.shape[0]`, or `-1` in a `reshape`). If the model
really needs that size, declare what it supports: a smaller range, or a static dimension.
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
    repair="""
-        return x.reshape(4, 2, 4).sum(1)
+        return x.reshape(x.shape[0], 2, 4).sum(1)
""",
    fails_on="capture",
    torch_error="your code specialized it to be a constant (4)",
    dynamic={"x.0": "1..64"},
    links=("https://docs.pytorch.org/docs/stable/export.programming_model.html",),
    exportdb=("torch.dynamic-shape", "python.builtin"),
)
