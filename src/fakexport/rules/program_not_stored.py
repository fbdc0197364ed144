"""FE406: no archive can have something in the program."""

from fakexport.rules.rule import Rule

RULE = Rule(
    code="FE406",
    name="program_not_stored",
    severity="error",
    message="the program cannot be saved",
    why="""
`torch.export` returns an ExportedProgram, but the `.pt2` format cannot store all of it: it has a tensor that
is not strided, such as a sparse one, a dtype without a code, a Python object among its inputs or outputs,
`round` of a symbolic size, or a higher-order operator that archives do not support. The program runs in the
process that exported it and nowhere else. `fakexport check` saves each program in memory, so its verdict is
that of `fakexport export`.
""",
    how_to_repair="""
Keep such values out of `forward`: pass and return strided tensors and Python's `bool`, `int`, `float` and
`str`. Pass the value of an enum instead of the enum, and compute with dense tensors.
""",
    failing_model="""
import torch
from torch import nn


class Packed(nn.Module):
    def forward(self, x):
        return x.view(torch.float4_e2m1fn_x2).view(torch.uint8) + 1  # <- FE406


def factory():
    return Packed(), (torch.ones(2, 8, dtype=torch.uint8),)
""",
    repair="""
-        return x.view(torch.float4_e2m1fn_x2).view(torch.uint8) + 1
+        return x + 1
""",
    fails_on="never",
    exportdb=("python.builtin",),
)
