"""FE403: a custom operator mutates an input that its schema does not declare."""

from fakexport.rules.rule import Rule

RULE = Rule(
    code="FE403",
    name="undeclared_mutation",
    severity="error",
    message="operator mutates an input without declaring it",
    why="""
A custom operator writes to one of its inputs in place, and its schema does not say so. The export, and
every pass after it, reorders and drops operators by what the schemas declare: the write may come too
early, or not at all, and the program computes something other than the model. The check ran the
operator's CPU kernel once on synthetic data of the traced shapes and observed the write.
""",
    how_to_repair="""
Declare the argument: `mutates_args={"x"}` in Python, `Tensor(a!) x` in a schema. Or let the operator
write to a copy. Run `torch.library.opcheck` to see the same on your own inputs.
""",
    failing_model="""
import torch
from torch import nn


@torch.library.custom_op("acme::normalise", mutates_args=())
def normalise(x: torch.Tensor) -> torch.Tensor:
    x.sub_(x.mean())
    return x.clone()


@normalise.register_fake
def _(x):
    return torch.empty_like(x)


class Normalise(nn.Module):
    def forward(self, x):
        return normalise(x)  # <- FE403


def factory():
    return Normalise(), (torch.randn(2, 3),)
""",
    repair="""
-    x.sub_(x.mean())
+    x = x.sub(x.mean())
""",
    fails_on="never",
    fault="operator library",
    links=("https://docs.pytorch.org/docs/stable/library.html",),
)
