"""FE803: AOTInductor cannot compile the program."""

from fakexport.rules.rule import Rule

RULE = Rule(
    code="FE803",
    name="not_compilable",
    severity="error",
    message="AOTInductor cannot compile the program",
    why="""
AOTInductor generates C++ for an ExportedProgram, or Triton for a GPU, and compiles it. For an operator
that it cannot generate code for, it calls torch's kernel (a fallback kernel); not all kinds of arguments
and results can be passed in such a call. So a program that runs in Python may be refused here. The
diagnostic names the operator and the line, if the compiler was at one, and quotes the compiler.
""",
    how_to_repair="""
Rewrite the line with other operators, or simplify the schema of a custom operator: tensors, numbers,
strings and lists of them as arguments, and tensors as results. Otherwise run the program in Python as it
is (`fakexport run`), or try another format of `fakexport compile`.
""",
    failing_model="""
import torch
from torch import nn


@torch.library.custom_op("acme::positives", mutates_args=())
def positives(x: torch.Tensor) -> int:
    return int((x > 0).sum())


@positives.register_fake
def _(x):
    return torch.library.get_ctx().new_dynamic_size()


class Weighted(nn.Module):
    def forward(self, x):
        return x * positives(x)  # <- FE803


def factory():
    return Weighted(), (torch.randn(2, 5),)
""",
    repair="""
-def positives(x: torch.Tensor) -> int:
-    return int((x > 0).sum())
+def positives(x: torch.Tensor) -> torch.Tensor:
+    return (x > 0).sum()

-    return torch.library.get_ctx().new_dynamic_size()
+    return x.new_empty((), dtype=torch.int64)
""",
    fails_on="compile",
    form="aoti",
    fault="torch",
)
