"""FE801: ExecuTorch cannot lower or run a part of the program."""

from fakexport.rules.rule import Rule

RULE = Rule(
    code="FE801",
    name="executorch_cannot_run",
    severity="error",
    message="ExecuTorch cannot run a part of the program",
    why="""
ExecuTorch runs an ExportedProgram without Python and without most of torch: it has about two hundred
kernels of its own, plans all memory before a call, and supports few kinds of control flow. It does not
support an operator that is not decomposed into those kernels, a size without an upper bound, or a
data-dependent loop. Some of these stop the lowering, one at a time; others produce a file that fails
where it is deployed, when it is loaded or called. A size without a bound is the worst of them: ExecuTorch
plans memory for the size of the example, and refuses any larger one at run time.
""",
    how_to_repair="""
Rewrite the line with operators that ExecuTorch has, or move the part out of the model. Give every dynamic
size an upper bound: `--dynamic x.0=1..64`. Bound a size that comes from data (an unbacked SymInt) in the
model, with `torch._check(n <= 64)`. For a custom operator, ExecuTorch needs its out variant and a kernel
that is registered with ExecuTorch.
""",
    failing_model="""
import torch
from torch import nn


class Middle(nn.Module):
    def forward(self, x):
        return torch.nanmedian(x, dim=-1).values  # <- FE801


def factory():
    return Middle(), (torch.randn(2, 5),)
""",
    repair="""
-        return torch.nanmedian(x, dim=-1).values
+        return x.topk(x.shape[-1] // 2 + 1, dim=-1).values[..., -1]
""",
    fails_on="compile",
    form="executorch",
    fault="target",
    links=("https://docs.pytorch.org/executorch/stable/kernel-library-overview.html",),
)
