"""FE904: a tensor of the module is neither parameter nor buffer."""

from fakexport.rules.rule import Rule

RULE = Rule(
    code="FE904",
    name="tensor_is_plain_attribute",
    severity="note",
    message="a tensor is held as a plain attribute",
    why="""
The module holds a tensor as a plain Python attribute. `module.to(device)` and `module.half()` pass it by, so
that it stays behind when the model moves to a GPU; a state dict does not have it, so that no checkpoint
brings it. In the program it is a constant: it has the value that it had during the capture, and no binding
changes it.
""",
    how_to_repair="""
Register it: `persistent=False` keeps it out of checkpoints, as before. If it is learned or differs from one
checkpoint to the next, make it a parameter or a persistent buffer.
""",
    failing_model="""
import torch
from torch import nn


class Scale(nn.Module):
    def __init__(self):
        super().__init__()
        self.scale = torch.linspace(0.5, 1.5, 8)

    def forward(self, x):
        return x * self.scale  # <- FE904


def factory():
    return Scale(), (torch.randn(2, 8),)
""",
    repaired_model="""
import torch
from torch import nn


class Scale(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("scale", torch.linspace(0.5, 1.5, 8), persistent=False)

    def forward(self, x):
        return x * self.scale


def factory():
    return Scale(), (torch.randn(2, 8),)
""",
    fails_on="never",
    links=(
        "https://docs.pytorch.org/docs/stable/generated/torch.nn.Module.html#torch.nn.Module.register_buffer",
    ),
)
