"""FE906: forward prints, and the program does not."""

from fakexport.rules.rule import Rule

RULE = Rule(
    code="FE906",
    name="print_in_forward",
    severity="note",
    message="forward prints",
    why="""
`print` ran while the model was traced, and showed fake tensors or symbolic sizes. An exported program
consists of operators on tensors: Python code that produces no tensor is not in its graph. Nothing is
printed where it is deployed. In strict mode the same line is a graph break and stops the export.
""",
    how_to_repair="""
Remove the line. To see a value of the program, return it; to see what shapes a module gets, inspect the
program (`fakexport inspect`).
""",
    failing_model="""
import torch
from torch import nn


class Loud(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(8, 8)

    def forward(self, x):
        y = self.linear(x)
        print("shape", y.shape)  # <- FE906
        return y


def factory():
    return Loud(), (torch.randn(2, 8),)
""",
    repair="""
-        print("shape", y.shape)
""",
    fails_on="never",
)
