"""FE804: a program that is to run without Python calls a Python custom operator."""

from fakexport.rules.rule import Rule

RULE = Rule(
    code="FE804",
    name="python_operator_in_cpp",
    severity="error",
    message="C++ program cannot call a Python custom operator",
    why="""
AOTInductor's native code calls a custom operator through torch's dispatcher, by its name. An operator of
`torch.library.custom_op` exists only after Python has run the module that defines it, and a C++ program
does not run Python. The project would compile, and fail at its first call.
""",
    how_to_repair="""
Rewrite the line with torch's operators, or the operator in C++ (`TORCH_LIBRARY`): the project loads its
library with `--library`. Or compile with `--to aoti`, and run that from Python.
""",
    failing_model="""
import torch
from torch import nn


@torch.library.custom_op("acme::softened", mutates_args=())
def softened(x: torch.Tensor) -> torch.Tensor:
    return x / (1 + x.abs())


@softened.register_fake
def _(x):
    return torch.empty_like(x)


class Soft(nn.Module):
    def forward(self, x):
        return softened(x)  # <- FE804


def factory():
    return Soft(), (torch.randn(2, 5),)
""",
    repair="""
-@torch.library.custom_op("acme::softened", mutates_args=())
-def softened(x: torch.Tensor) -> torch.Tensor:
-    return x / (1 + x.abs())
-
-
-@softened.register_fake
-def _(x):
-    return torch.empty_like(x)
-
-

-        return softened(x)
+        return x / (1 + x.abs())
""",
    fails_on="compile",
    form="cpp-project",
    fault="model",
    links=("https://docs.pytorch.org/tutorials/advanced/cpp_custom_ops.html",),
)
