"""FE208: forward casts or moves a module."""

from fakexport.rules.rule import Rule

RULE = Rule(
    code="FE208",
    name="module_moved",
    severity="error",
    message="forward casts or moves a module's weights",
    why="""
`module.to(...)`, `.float()`, `.half()` or `.cuda()` in `forward` replaces the weights of the module. An
exported program has its weights outside of the graph, in its state dict, with the dtype and the device
that they had before `forward` ran: nothing in the graph can replace them. Stock torch raises `Couldn't
swap`.
""",
    how_to_repair="""
Give the module its dtype and device in the constructor, and cast its input:
`self.norm(x.to(self.norm.weight.dtype))`. If the computation needs a higher precision than the weights
have, cast the weights where they are used: `F.layer_norm(x.float(), shape, self.norm.weight.float())`.
""",
    failing_model="""
import torch
from torch import nn


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = nn.LayerNorm(4)

    def forward(self, x):
        self.norm.to(x.dtype)  # <- FE208
        return self.norm(x)


def factory():
    return Block(), (torch.randn(2, 4, dtype=torch.bfloat16),)
""",
    repair="""
-        self.norm.to(x.dtype)
-        return self.norm(x)
+        return self.norm(x.to(self.norm.weight.dtype))
""",
    fails_on="capture",
    torch_error="Couldn't swap",
)
