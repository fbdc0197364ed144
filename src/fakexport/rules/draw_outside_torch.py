"""FE907: forward draws a random number that torch cannot trace."""

from fakexport.rules.rule import Rule

RULE = Rule(
    code="FE907",
    name="draw_outside_torch",
    severity="warning",
    message="forward uses a random generator torch cannot trace",
    why="""
`forward` asked Python's `random` or NumPy for a number. Both are outside of torch: the number that was
drawn while the model was traced is a constant of the exported program, the same at each call, and the
next export produces a different program. Eager code draws a new one each time.
""",
    how_to_repair="""
Draw with torch: `torch.rand(())` is an operator of the graph. If the number decides which code runs
(layer drop, stochastic depth), skip that in evaluation: `if self.training and random.random() < p`.
""",
    failing_model="""
import random

import torch
from torch import nn


class Jitter(nn.Module):
    def forward(self, x):
        return x + random.random()  # <- FE907


def factory():
    return Jitter(), (torch.randn(2, 8),)
""",
    repair="""
-import random
-

-        return x + random.random()
+        return x + torch.rand(())
""",
    fails_on="never",
    links=("https://docs.pytorch.org/docs/stable/notes/randomness.html",),
)
