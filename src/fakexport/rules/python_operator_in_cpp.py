"""FE804: an operator of Python in a program that is to run without Python."""

from fakexport.rules.rule import Rule

RULE = Rule(
    code="FE804",
    name="python_operator_in_cpp",
    severity="error",
    message="a C++ program cannot call an operator of Python",
    why="""
The native code of AOTInductor calls an operator that torch does not have through torch's dispatcher. One of
`torch.library.custom_op` is there once Python has run the module that makes it, and a C++ program runs no
Python. The project would be compiled, and end at its first call.
""",
    how_to_repair="""
Write the line with torch's operators, or the operator in C++ (`TORCH_LIBRARY`): the project loads its
library with `--library`. Or compile with `--to aoti`, and run that from Python. Mixtures of experts of
transformers call one of Python, unless their `config.json` says `"experts_implementation": "batched_mm"`.
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
    repaired_model="""
import torch
from torch import nn


class Soft(nn.Module):
    def forward(self, x):
        return x / (1 + x.abs())


def factory():
    return Soft(), (torch.randn(2, 5),)
""",
    fails_on="compile",
    form="cpp-project",
    fault="model",
    links=("https://docs.pytorch.org/tutorials/advanced/cpp_custom_ops.html",),
)
