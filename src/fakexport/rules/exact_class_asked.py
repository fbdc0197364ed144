"""FE909: the model asks for a class that its values do not have while it is traced."""

from fakexport.rules.rule import Rule

RULE = Rule(
    code="FE909",
    name="exact_class_asked",
    severity="warning",
    message="model asks for the class of traced values",
    why="""
While a model is traced, its tensors and parameters are of subclasses of `torch.Tensor`. `type(x) is
torch.Tensor` is then false, where it is true in eager mode: the exported program has the other branch, and
no error says so. A size that varies, and a number that is read from data, is a symbol and no `int`: so it is
with `isinstance(x.shape[0], int)`. Stock `torch.export` does the same. The question is found in the source of
the model's classes, so that it is reported whether `forward` comes there or not.
""",
    how_to_repair="""
Ask with `isinstance(x, torch.Tensor)`, which is true for plain tensors and for traced ones, and for numbers
with `isinstance(n, (int, torch.SymInt))`.
""",
    failing_model="""
import torch
from torch import nn


class Scale(nn.Module):
    def forward(self, x, scale=2.0):
        if type(x) is torch.Tensor:  # <- FE909
            return x * scale
        return x


def factory():
    return Scale(), (torch.randn(2, 8),)
""",
    repair="""
-        if type(x) is torch.Tensor:
+        if isinstance(x, torch.Tensor):
""",
    fails_on="never",
    links=("https://docs.pytorch.org/docs/stable/notes/extending.html",),
)
