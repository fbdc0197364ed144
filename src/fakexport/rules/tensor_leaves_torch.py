"""FE205: tensor data leaves PyTorch."""

from fakexport.rules.rule import Rule

RULE = Rule(
    code="FE205",
    name="tensor_leaves_torch",
    severity="error",
    message="tensor data leaves PyTorch (`.numpy()`, `.tolist()`)",
    why="""
`forward` turns a tensor into a NumPy array, by `.numpy()`, `numpy.asarray` or a function of another
library that does so. The trace records torch operators, and a fake tensor has no data to hand over: what
happens outside of torch cannot become part of the graph. If it could, the numbers of one example input
would be hard-coded in it.
""",
    how_to_repair="""
Write the computation with torch operators; most NumPy functions have one of the same name. If the code
has to stay outside of torch, wrap it in a custom operator with a fake kernel: the program then calls it
by name. Move what does not depend on the inputs into the constructor.
""",
    failing_model="""
import torch
from torch import nn


class Ranks(nn.Module):
    def forward(self, x):
        order = torch.as_tensor(x.numpy().argsort())  # <- FE205
        return order.argsort()


def factory():
    return Ranks(), (torch.tensor([3.0, 1.0, 2.0]),)
""",
    repair="""
-        order = torch.as_tensor(x.numpy().argsort())
+        order = x.argsort()
""",
    fails_on="capture",
    torch_error=".numpy() is not supported for tensor subclasses",
    links=("https://docs.pytorch.org/tutorials/advanced/custom_ops_landing_page.html",),
)
