"""FE207: an input that is a Python number is fixed in the program."""

from fakexport.rules.rule import Rule

RULE = Rule(
    code="FE207",
    name="specialized_number",
    severity="warning",
    message="Python number input is specialized to its value",
    why="""
An input of `forward` is a Python number, and the trace computed with its value: a multiplication by it, a
loop that it bounds. The exported program keeps the value of the example as a constant, with a guard that
refuses every other value (`expected input ... to be equal to ...`). The same applies to a number that was
read from a tensor with `.item()` before it was passed. The export itself succeeds.
""",
    how_to_repair="""
If the number varies, pass a 0-d (scalar) tensor: it stays an input of the program. If it is part of the
configuration, remove it from the inputs and make it a default of `forward` or an attribute of the module:
then no one expects that it can be changed. A library's model that reads its numbers, such as the sizes of
images of `hf:llava_next`, needs one program for each value.
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
    repair="""
-    return Scaled(), (torch.randn(4), scale.item())
+    return Scaled(), (torch.randn(4), scale)
""",
    fails_on="never",
    fault="inputs",
)
