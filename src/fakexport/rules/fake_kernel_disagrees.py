"""FE402: a fake kernel disagrees with the real kernel."""

from fakexport.rules.rule import Rule

RULE = Rule(
    code="FE402",
    name="fake_kernel_disagrees",
    severity="error",
    message="fake kernel disagrees with the real kernel",
    why="""
A custom operator has a fake kernel, which the trace relied on, and its real kernel returns something
else: another shape, dtype or memory layout (strides). The exported program is wrong from this operator
on, and no error says so until it runs: a compiler reads memory by the declared strides. The check ran the
operator's CPU kernel once on synthetic data of the traced shapes, which an export alone never does.
""",
    how_to_repair="""
Make the fake kernel return what the real one returns, for each shape, dtype and stride: derive them from
the inputs, and let the real kernel return contiguous tensors. Run `torch.library.opcheck` to compare the
two on your own inputs.
""",
    failing_model="""
import torch
from torch import nn


@torch.library.custom_op("acme::row_sum", mutates_args=())
def row_sum(x: torch.Tensor) -> torch.Tensor:
    return x.sum(-1)


@row_sum.register_fake
def _(x):
    return torch.empty_like(x)


class Sum(nn.Module):
    def forward(self, x):
        return row_sum(x)  # <- FE402


def factory():
    return Sum(), (torch.randn(2, 3),)
""",
    repair="""
-    return torch.empty_like(x)
+    return x.new_empty(x.shape[:-1])
""",
    fails_on="never",
    fault="operator library",
    links=("https://docs.pytorch.org/docs/stable/library.html",),
)
