"""FE801: what ExecuTorch cannot lower or run."""

from fakexport.rules.rule import Rule

RULE = Rule(
    code="FE801",
    name="executorch_cannot_run",
    severity="error",
    message="ExecuTorch cannot run a part of the program",
    why="""
ExecuTorch runs a program without Python and without most of torch: it has some two hundred kernels of its
own, plans all memory before a call, and knows few kinds of control flow. An operator that is not decomposed
into those kernels, a size without an upper bound, or a loop that depends on data has no place there. Left
alone, some of these stop the lowering, one at a time; others make a file that is written and then fails
where it is deployed, when it is loaded or called. A size without a bound is the worst of them: ExecuTorch
plans memory for the size of the example, and refuses any larger one at run time.
""",
    how_to_repair="""
Write the same with operators that ExecuTorch has, or move the part out of the model. Give every dynamic size
an upper bound: `--dynamic x.0=1..64`. A size that comes from data gets its bound in the model, with
`torch._check(n <= 64)`. For an operator of your own, ExecuTorch needs its out variant and a kernel that is
registered with ExecuTorch.
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
    repaired_model="""
import torch
from torch import nn


class Middle(nn.Module):
    def forward(self, x):
        return x.topk(x.shape[-1] // 2 + 1, dim=-1).values[..., -1]


def factory():
    return Middle(), (torch.randn(2, 5),)
""",
    fails_on="compile",
    form="executorch",
    fault="target",
    links=("https://docs.pytorch.org/executorch/stable/kernel-library-overview.html",),
)
