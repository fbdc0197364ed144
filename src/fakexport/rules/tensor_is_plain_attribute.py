"""FE904: a tensor of the module is neither a parameter nor a buffer."""

from fakexport.rules.rule import Rule

RULE = Rule(
    code="FE904",
    name="tensor_is_plain_attribute",
    severity="note",
    message="tensor is neither parameter nor buffer",
    why="""
The module holds a tensor as a plain Python attribute. `module.to(device)` and `module.half()` skip it, so
it stays where it is when the model moves to a GPU; it is not in the state dict, so no checkpoint contains
it. In the exported program it is a constant: it has the value that it had while tracing, and binding does
not change it.
""",
    how_to_repair="""
Register it as a buffer: `persistent=False` keeps it out of checkpoints, as before. If it is learned or
differs between checkpoints, make it a parameter or a persistent buffer.
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
    repair="""
-        self.scale = torch.linspace(0.5, 1.5, 8)
+        self.register_buffer("scale", torch.linspace(0.5, 1.5, 8), persistent=False)
""",
    fails_on="never",
    links=(
        "https://docs.pytorch.org/docs/stable/generated/torch.nn.Module.html#torch.nn.Module.register_buffer",
    ),
)
