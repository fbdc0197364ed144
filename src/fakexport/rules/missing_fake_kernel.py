"""FE401: a custom operator has no fake kernel."""

from fakexport.rules.rule import Rule

RULE = Rule(
    code="FE401",
    name="missing_fake_kernel",
    severity="error",
    message="operator has no fake kernel: output shape unknown",
    why="""
The model calls a custom operator that was registered outside of torch and that can only run on real data.
The trace runs the model on fake tensors, so it needs a second implementation of the operator: a function
that returns an output of the right shape, strides, dtype and device without computing it. Python calls
that a fake kernel (`register_fake`), C++ a Meta kernel. The real kernel cannot replace it. The cause
is in the library that registers the operator.
""",
    how_to_repair="""
Register a fake kernel next to the operator. It receives fake tensors, must not read their values, and
creates its outputs with `torch.empty_like`, `x.new_empty(...)` and the like. If the library is not yours,
register it from your own code after importing the library:
`torch.library.register_fake("acme::scale_rows")`.
""",
    failing_model="""
import torch
from torch import nn


@torch.library.custom_op("acme::scale_rows", mutates_args=())
def scale_rows(x: torch.Tensor) -> torch.Tensor:
    return x / x.sum(dim=-1, keepdim=True)


class Scale(nn.Module):
    def forward(self, x):
        return scale_rows(x)  # <- FE401


def factory():
    return Scale(), (torch.randn(2, 3),)
""",
    repair="""
+@scale_rows.register_fake
+def _(x):
+    return torch.empty_like(x)
+
+
 class Scale(nn.Module):
""",
    fails_on="capture",
    torch_error="no fake impl registered",
    fault="operator library",
    links=(
        "https://docs.pytorch.org/docs/stable/library.html",
        "https://docs.pytorch.org/tutorials/advanced/custom_ops_landing_page.html",
    ),
)
