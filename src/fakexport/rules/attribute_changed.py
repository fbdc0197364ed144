"""FE903: forward changes an attribute or a variable, and the program does not."""

from fakexport.rules.rule import Rule

RULE = Rule(
    code="FE903",
    name="attribute_changed",
    severity="warning",
    message="forward changes an attribute or a variable",
    why="""
While `forward` was traced, it assigned an attribute of a module or of its class, or a variable of the file,
or changed what one holds: a list, a dict, an object, an iterator, a function that counts its calls. An
exported program has no attributes and no variables: it does not count the calls, it does not remember the
last tensor, and it does not change a list or a dict that it is given. Only buffers are state of a program.
This is a warning if the results are the same without it. If the next call computes something else because of
the change, it is the error FE912.
""",
    how_to_repair="""
If the value is a result, return it. If it is state, register it as a buffer and write into it in place:
the program then does the same, at each call. If it is a cache of something that never changes, compute it
in the constructor.
""",
    failing_model="""
import torch
from torch import nn


class Counter(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(8, 8)
        self.steps = 0

    def forward(self, x):
        self.steps += 1  # <- FE903
        return self.linear(x)


def factory():
    return Counter(), (torch.randn(2, 8),)
""",
    repair="""
-        self.steps = 0
+        self.register_buffer("steps", torch.zeros(()))
""",
    fails_on="never",
    links=("https://docs.pytorch.org/docs/stable/export.programming_model.html",),
)
