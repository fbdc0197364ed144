"""FE305: a dynamic dimension of an input that is not read."""

from fakexport.rules.rule import Rule

RULE = Rule(
    code="FE305",
    name="unused_dynamic_dim",
    severity="warning",
    message="a dynamic dimension belongs to an input that is never read",
    why="""
You declared a dimension of an input dynamic, and nothing in the program reads that input. The declaration
changes nothing: often a branch of the model was not taken with these example inputs, or the name of the
input is not the one that was meant. The program still expects the input.
""",
    how_to_repair="""
Look whether the example inputs lead `forward` where the input is used. If they do, leave the input and the
declaration out.
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
    repaired_model="""
import torch
from torch import nn


class Masked(nn.Module):
    is_masked = True

    def forward(self, x, mask):
        return x * mask if self.is_masked else x + 1


def factory():
    return Masked(), (torch.randn(4, 8), torch.ones(4, 8))
""",
    fails_on="never",
    dynamic={"mask.0": "2..64"},
    fault="inputs",
)
