"""FE204: the number of iterations of a loop depends on tensor values."""

from fakexport.rules.rule import Rule

RULE = Rule(
    code="FE204",
    name="data_dependent_loop",
    severity="error",
    message="loop trip count depends on tensor values",
    why="""
The condition of a `while` is a tensor: data-dependent control flow. The trace runs `forward` once,
without data, so it can neither evaluate the condition nor write down a number of iterations: an exported
program is a fixed graph of operators. It is the branch of FE201 taken once per iteration, and computing
both sides does not help here.
""",
    how_to_repair="""
Run a fixed number of iterations, and let `torch.where` keep the state once the condition is met: the
result stays the same, as long as the bound is large enough. Or put the loop into the graph as one
operator, `torch.while_loop(condition, body, state)`, if the shapes of the state do not change.
""",
    failing_model="""
import torch
from torch import nn


class Halving(nn.Module):
    max_rounds = 8

    def forward(self, x):
        while x.abs().max() > 1:  # <- FE204
            x = x / 2
        return x


def factory():
    return Halving(), (torch.linspace(-9, 9, 4),)
""",
    repair="""
-        while x.abs().max() > 1:
-            x = x / 2
+        for _ in range(self.max_rounds):
+            x = torch.where(x.abs().max() > 1, x / 2, x)
""",
    fails_on="capture",
    torch_error="Could not guard on data-dependent expression",
    links=("https://docs.pytorch.org/docs/stable/generated/torch._higher_order_ops.while_loop.html",),
    exportdb=("python.control-flow",),
)
