"""FE203: Python needs a number that is known only at run time."""

from fakexport.rules.rule import Rule

RULE = Rule(
    code="FE203",
    name="data_dependent_value",
    severity="error",
    message="data-dependent value used as a Python number",
    why="""
The model reads a number out of a tensor (`.item()`, an unbacked SymInt while tracing) and uses it where
Python itself must know it: as the bound of a `range`, as a list index, as an argument of a function that
is not an operator. The trace can carry an unknown number through arithmetic, slices and many operators
(`x[:n]` is fine); it cannot run a loop an unknown number of times. Unlike FE201, it is not a yes or no
that is missing, so computing both sides does not help.
""",
    how_to_repair="""
Give the loop a bound that is known, from the configuration or a shape, and mask the extra iterations with
`torch.where`. Or pass the number as an argument of `forward`: it is then fixed in the program, and each
value needs its own export. Or replace the loop by an operator over the whole tensor (`cumsum`, `scatter`,
`torch.while_loop`). If every input has the same integer there, say so without a change of the code:
`fakexport check ... --assume model.py:7=3`. The program is then for 3, and raises a RuntimeError for an input
that has another one.
""",
    failing_model="""
import torch
from torch import nn


class Rounds(nn.Module):
    def forward(self, x, steps):
        for _ in range(int(steps.max())):  # <- FE203
            x = torch.tanh(x)
        return x


def factory():
    return Rounds(), (torch.randn(4), torch.tensor([1, 3]))
""",
    repair="""
 class Rounds(nn.Module):
+    max_steps = 4
+

-        for _ in range(int(steps.max())):
-            x = torch.tanh(x)
+        for step in range(self.max_steps):
+            x = torch.where(step < steps.max(), torch.tanh(x), x)
""",
    fails_on="capture",
    torch_error="Could not extract specialized integer from data-dependent expression",
    exportdb=("torch.dynamic-value",),
)
