"""FE206: TorchDynamo cannot trace this code."""

from fakexport.rules.rule import Rule

RULE = Rule(
    code="FE206",
    name="unsupported_python",
    severity="error",
    message="graph break: strict mode cannot trace this code",
    why="""
With `--strict`, TorchDynamo interprets the bytecode of `forward` instead of Python, so that it can prove
what the program depends on. It knows torch and most of the Python language, but not every C function: the
clock, the garbage collector, sockets and C extensions cause a graph break, which an export does not
allow. In a non-strict export this code just runs, once, while the model is traced.
""",
    how_to_repair="""
Export without `--strict`: that is torch's default, and the other rules are found there too. If the export
has to be strict, move the call out of `forward`, or skip it while exporting: `if not
torch.compiler.is_exporting():`.
""",
    failing_model="""
import gc

import torch
from torch import nn


class Frugal(nn.Module):
    def forward(self, x):
        x = torch.tanh(x)
        gc.collect()  # <- FE206
        return x


def factory():
    return Frugal(), (torch.randn(4),)
""",
    repair="""
-        gc.collect()
+        if not torch.compiler.is_exporting():
+            gc.collect()
""",
    fails_on="capture",
    torch_error="Dynamo does not know how to trace the builtin `gc.collect.`",
    is_strict=True,
    links=("https://docs.pytorch.org/docs/stable/export.html",),
)
