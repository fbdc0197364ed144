"""FE905: an output is memory of an input, of a weight or of another output."""

from fakexport.rules.rule import Rule

RULE = Rule(
    code="FE905",
    name="output_shares_memory",
    severity="note",
    message="an output shares memory with something else",
    why="""
An output is an input, a weight or another output, or a view of one. Whoever writes into it changes the other
too: of a weight, for all calls to come. The exported program run by torch keeps that; compiled packages and
other runtimes give memory of its own to each output, so that code which relies on the sharing behaves
otherwise there.
""",
    how_to_repair="""
Return a copy where the caller may write into it. Where nobody writes, nothing has to be done: this is a note.
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
    repaired_model="""
import torch
from torch import nn


class Halves(nn.Module):
    def forward(self, x):
        y = torch.tanh(x)
        first = y[:, :4].clone()
        return y, first


def factory():
    return Halves(), (torch.randn(2, 8),)
""",
    fails_on="never",
)
