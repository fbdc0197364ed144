"""FE303: an example size of 0 or 1 specializes a dynamic dimension."""

from fakexport.rules.rule import Rule

RULE = Rule(
    code="FE303",
    name="zero_or_one_example",
    severity="error",
    message="example size 0 or 1 specializes the dimension",
    why="""
You declared a dimension dynamic, and the example input has size 0 or 1 there. torch treats these two
sizes specially, because of broadcasting and emptiness: a trace with one of them is correct for that size
only. So torch specializes such a dimension, and then refuses the declaration. The model is not the cause.
""",
    how_to_repair="""
Pass an example of another size, 2 or more, with `--input` or from the factory. The exported program then
accepts sizes 0 and 1 too, without a guard: it is correct for them unless the model or an operator treats
them specially, and `fakexport check` says so where the declared range includes them. If the size is
always 1, do not declare the dimension.
""",
    failing_model="""
import torch
from torch import nn


class Shift(nn.Module):
    def forward(self, x):
        return x + 1


def factory():
    return Shift(), (torch.randn(1, 8),)  # <- FE303
""",
    repair="""
-    return Shift(), (torch.randn(1, 8),)
+    return Shift(), (torch.randn(2, 8),)
""",
    fails_on="capture",
    torch_error="Constraints violated",
    dynamic={"x.0": "1..64"},
    fault="inputs",
    links=("https://docs.pytorch.org/docs/stable/export.programming_model.html",),
)
