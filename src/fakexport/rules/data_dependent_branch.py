"""FE201: a Python branch depends on tensor values."""

from fakexport.rules.rule import Rule

RULE = Rule(
    code="FE201",
    name="data_dependent_branch",
    severity="error",
    message="data-dependent branch: condition depends on tensor values",
    why="""
An `if`, `while`, `and`, `or`, `not` or `assert` needs the value of a tensor to be true or false. An
exported program is one graph for all inputs, and Python runs only while that graph is traced, when no
values exist to decide on. This is data-dependent control flow: TorchDynamo reports it as a graph break,
`torch.export` as a guard on a data-dependent expression. Eager mode and `torch.compile` hide it: eager
mode has the values, and `torch.compile` falls back to Python. On an accelerator the line also waits for
the device on each call.
""",
    how_to_repair="""
If both sides return tensors of the same shape, compute both and choose with `torch.where`. If the sides
are expensive, use `torch.cond`, which puts both into the graph. If the decision really depends on the
configuration or on a shape, branch on that instead of on the tensor. If every input leads to the same
answer, give it: `fakexport check ... --assume model.py:8=False`. The program then goes that way, and
raises a RuntimeError for an input with which it is not so. The fix names the answer that the example inputs
give, if the model then traces to its end. No code has to be changed, which helps with a library's.

Two kinds of conditions are not reported. Where `if bad: raise ValueError(...)` or `assert good` does nothing
but raise, the program raises a RuntimeError that names the line, for the same inputs. And lines that only
write what is selected run always, since nothing is written where nothing is: those after `if mask.any():`, or
after `if rows.numel() == 0: continue` in a loop over experts.

The line may be in a `try` that catches what torch raises here. Stock `torch.export` then makes a program of
the `except`, for all inputs.
""",
    failing_model="""
import torch
from torch import nn


class Gate(nn.Module):
    def forward(self, x):
        if x.sum() > 0:  # <- FE201
            return x
        return -x


def factory():
    return Gate(), (torch.randn(4),)
""",
    repair="""
-        if x.sum() > 0:
-            return x
-        return -x
+        return torch.where(x.sum() > 0, x, -x)
""",
    fails_on="capture",
    torch_error="Could not guard on data-dependent expression",
    links=("https://docs.pytorch.org/docs/stable/cond.html",),
    exportdb=("python.control-flow", "torch.cond"),
)
