"""FE209: an operator whose operands have dtypes that its kernels refuse."""

from fakexport.rules.rule import Rule

RULE = Rule(
    code="FE209",
    name="dtype_mismatch",
    severity="error",
    message="an operator refuses the dtypes of its operands",
    why="""
A dtype mismatch: a linear layer with float32 weights gets integers, or a half-precision convolution gets
float32, or a softmax gets integers. torch promotes dtypes in `add` or `mul` and not here: eager torch raises
`mat1 and mat2 must have the same dtype`, on the CPU and on CUDA. Other kernels lack a kind of dtypes: no
`relu` of bool, no comparison of complex numbers, and on CUDA no product of integers. A capture runs fake
kernels, which do not compare these dtypes. `torch.export` succeeds, and the exported program raises when it
is run.
""",
    how_to_repair="""
Convert the operands to one dtype before the call: `x.to(self.linear.weight.dtype)`. If the example inputs
have a dtype that the deployed model never gets, correct them in the factory. If the model is meant to run in
mixed precision, put the call under `torch.autocast`: the program keeps that region, whose operators convert.
""",
    failing_model="""
import torch
from torch import nn


class Head(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(8, 4)

    def forward(self, x):
        return self.linear(x)  # <- FE209


def factory():
    return Head(), (torch.arange(16).reshape(2, 8),)
""",
    repaired_model="""
import torch
from torch import nn


class Head(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(8, 4)

    def forward(self, x):
        return self.linear(x.to(self.linear.weight.dtype))


def factory():
    return Head(), (torch.arange(16).reshape(2, 8),)
""",
    fails_on="never",
    links=("https://docs.pytorch.org/docs/stable/tensor_attributes.html#torch.dtype",),
)
