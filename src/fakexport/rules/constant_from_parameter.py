"""FE601: a constant of the program depends on the value of a parameter."""

from fakexport.rules.rule import Rule

RULE = Rule(
    code="FE601",
    name="constant_from_parameter",
    severity="warning",
    message="constant depends on a parameter's value",
    why="""
The constructor computes a tensor from a parameter and keeps it outside of the state dict: as a plain
attribute, or as a buffer with `persistent=False`. An exported program carries such a tensor as a
constant. Its value is the one that the parameter had in the constructor, before any checkpoint was
loaded, and a fake parameter has none at all. `torch.export` of the real model stores the value of that
moment in the program: if the checkpoint was loaded afterwards, that is the value of the random
initialization, and nothing reports it. fakexport does not guess: the constant has no value, and the
program is incomplete until you put one into `program.constants`. A constant that is the memory of a
parameter or of a persistent buffer, or a view of it, is reported too. A value that went through a Python
number (`weight.std().item()`) is not detected.
""",
    how_to_repair="""
Compute the value in `forward`, from the parameter: it is then correct for each checkpoint, and a compiler
folds it. If it is too expensive for that, register it as a persistent buffer, so that it is part of the
checkpoint. Register a tensor that is meant to be the weight itself as a parameter under that name.
""",
    failing_model="""
import torch
from torch import nn


class Normalised(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(8, 8)
        self.register_buffer("peak", self.linear.weight.detach().abs().amax(), persistent=False)

    def forward(self, x):
        return self.linear(x) / self.peak  # <- FE601


def factory():
    return Normalised(), (torch.randn(2, 8),)
""",
    repair="""
-        self.register_buffer("peak", self.linear.weight.detach().abs().amax(), persistent=False)

-        return self.linear(x) / self.peak
+        return self.linear(x) / self.linear.weight.abs().amax()
""",
    fails_on="never",
    links=("https://docs.pytorch.org/docs/stable/generated/torch.nn.Module.html",),
)
