"""FE205: a tensor's data is taken to NumPy."""

from fakexport.rules.rule import Rule

RULE = Rule(
    code="FE205",
    name="tensor_leaves_torch",
    severity="error",
    message="the data of a tensor are taken out of torch",
    why="""
`forward` turns a tensor into a NumPy array, by `.numpy()`, `numpy.asarray` or a function of another library
that does so. The capture follows operators of torch, and there are no data to hand over: what happens
outside of torch could not become part of the program. If it could, the numbers of one example input would
be fixed in it.
""",
    how_to_repair="""
Write the computation with operators of torch; most functions of NumPy have one of the same name. If the
code has to stay outside, wrap it as a custom operator with a fake kernel: the program then calls it by its
name. What does not depend on the inputs belongs into the constructor.
""",
    failing_model="""
import torch
from torch import nn


class Ranks(nn.Module):
    def forward(self, x):
        order = torch.as_tensor(x.numpy().argsort())  # <- FE205
        return order.argsort()


def factory():
    return Ranks(), (torch.tensor([3.0, 1.0, 2.0]),)
""",
    repaired_model="""
import torch
from torch import nn


class Ranks(nn.Module):
    def forward(self, x):
        order = x.argsort()
        return order.argsort()


def factory():
    return Ranks(), (torch.tensor([3.0, 1.0, 2.0]),)
""",
    fails_on="capture",
    links=("https://docs.pytorch.org/tutorials/advanced/custom_ops_landing_page.html",),
)
