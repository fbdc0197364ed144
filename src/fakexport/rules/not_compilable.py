"""FE803: AOTInductor cannot compile the program."""

from fakexport.rules.rule import Rule

RULE = Rule(
    code="FE803",
    name="not_compilable",
    severity="error",
    message="AOTInductor cannot compile the program",
    why="""
AOTInductor writes C++ for a program, or Triton for a GPU, and has it compiled. For an operator that it has
no code for, it writes a call of the kernel that torch has; not all kinds of arguments and results can be
handed over in such a call. A program that runs in Python may therefore be refused here. The finding names
the operator and the line, where the compiler was at one, and quotes the compiler.
""",
    how_to_repair="""
Write the line with other operators, or give a custom operator a plainer signature: tensors, numbers,
strings and lists of them, and tensors as results. Where that is not wanted, the program runs in Python as
it is (`fakexport run`), and the other forms of `fakexport compile` may take it.
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
    repaired_model="""
import torch
from torch import nn


@torch.library.custom_op("acme::positives", mutates_args=())
def positives(x: torch.Tensor) -> torch.Tensor:
    return (x > 0).sum()


@positives.register_fake
def _(x):
    return x.new_empty((), dtype=torch.int64)


class Weighted(nn.Module):
    def forward(self, x):
        return x * positives(x)


def factory():
    return Weighted(), (torch.randn(2, 5),)
""",
    fails_on="compile",
    form="aoti",
    fault="torch",
)
