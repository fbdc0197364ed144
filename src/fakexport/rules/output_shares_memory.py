"""FE905: an output shares memory with a weight, another output or a written input."""

from fakexport.rules.rule import Rule

RULE = Rule(
    code="FE905",
    name="output_shares_memory",
    severity="note",
    message="output shares memory with another tensor",
    why="""
An output is a weight, another output or an input that `forward` writes into in place, or a view of one.
Anyone who writes into it changes the other too: with a weight, for all later calls. The exported program
run by torch keeps this aliasing; compiled packages and other runtimes return separate memory for each
output, so code that relies on the sharing behaves differently there.
""",
    how_to_repair="""
Return a copy (`.clone()`) if the caller may write into it. If no one writes into it, do nothing: this is
a note.
""",
    failing_model="""
import torch
from torch import nn


class Halves(nn.Module):
    def forward(self, x):
        y = torch.tanh(x)
        first = y[:, :4]  # <- FE905
        return y, first


def factory():
    return Halves(), (torch.randn(2, 8),)
""",
    repair="""
-        first = y[:, :4]
+        first = y[:, :4].clone()
""",
    fails_on="never",
)
