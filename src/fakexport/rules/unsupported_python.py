"""FE206: TorchDynamo cannot follow the code."""

from fakexport.rules.rule import Rule

RULE = Rule(
    code="FE206",
    name="unsupported_python",
    severity="error",
    message="strict mode cannot follow this Python code",
    why="""
With `--strict`, TorchDynamo interprets the bytecode of `forward` in place of Python, so that it can prove
what the program depends on. It knows torch and most of Python's language, but not C functions that it was
not taught: it stops at the clock, the garbage collector, sockets, C extensions. Outside of a strict export
this code just runs, once, while the model is traced.
""",
    how_to_repair="""
Export without `--strict`: that is torch's default, and the other rules are found there too. If it has to be
strict, move the call out of `forward`, or leave it out while exporting: `if not
torch.compiler.is_exporting():`.
""",
    failing_model="""
import gc

import torch
from torch import nn


class Frugal(nn.Module):
    def forward(self, x):
        x = torch.tanh(x)
        gc.collect()  # <- FE206
        return x


def factory():
    return Frugal(), (torch.randn(4),)
""",
    repaired_model="""
import gc

import torch
from torch import nn


class Frugal(nn.Module):
    def forward(self, x):
        x = torch.tanh(x)
        if not torch.compiler.is_exporting():
            gc.collect()
        return x


def factory():
    return Frugal(), (torch.randn(4),)
""",
    fails_on="capture",
    is_strict=True,
    links=("https://docs.pytorch.org/docs/stable/export.html",),
)
