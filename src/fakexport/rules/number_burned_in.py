"""FE207: an input that is a number is fixed in the program."""

from fakexport.rules.rule import Rule

RULE = Rule(
    code="FE207",
    name="number_burned_in",
    severity="warning",
    message="a number among the inputs is fixed in the program",
    why="""
An input of `forward` is a Python number, and the export computed with its value: a multiplication by it, a
loop that it bounds. The program keeps the value of the example and refuses every other one, with an error
about an input that was specialized. The same holds for a number that was read from a tensor before it was
passed, with `.item()`. The export itself succeeds.
""",
    how_to_repair="""
If the number varies, pass a tensor without dimensions: it stays an input of the program. If it is part of
the configuration, leave it out of the inputs, as a default of `forward` or an attribute of the module: then
nobody expects that it can be changed.
""",
    failing_model="""
import torch
from torch import nn


class Scaled(nn.Module):
    def forward(self, x, scale):
        return x * scale


def factory():
    scale = torch.tensor(0.5)
    return Scaled(), (torch.randn(4), scale.item())  # <- FE207
""",
    repaired_model="""
import torch
from torch import nn


class Scaled(nn.Module):
    def forward(self, x, scale):
        return x * scale


def factory():
    scale = torch.tensor(0.5)
    return Scaled(), (torch.randn(4), scale)
""",
    fails_on="never",
    fault="inputs",
)
