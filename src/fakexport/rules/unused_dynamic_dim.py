"""FE305: a dynamic dimension of an input that is not read."""

from fakexport.rules.rule import Rule

RULE = Rule(
    code="FE305",
    name="unused_dynamic_dim",
    severity="warning",
    message="dynamic dimension of an unused input",
    why="""
You declared a dimension of an input dynamic, and nothing in the exported program reads that input: its
placeholder has no users. The declaration changes nothing: often a branch of the model was not taken with
these example inputs, or the wrong input was named. The program still expects the input.
""",
    how_to_repair="""
Check whether the example inputs lead `forward` to where the input is used. If they do, remove the input
and the declaration.
""",
    failing_model="""
import torch
from torch import nn


class Masked(nn.Module):
    is_masked = False

    def forward(self, x, mask):
        return x * mask if self.is_masked else x + 1


def factory():
    return Masked(), (torch.randn(4, 8), torch.ones(4, 8))  # <- FE305
""",
    repair="""
-    is_masked = False
+    is_masked = True
""",
    fails_on="never",
    dynamic={"mask.0": "2..64"},
    fault="inputs",
)
