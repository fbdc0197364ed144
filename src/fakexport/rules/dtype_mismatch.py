"""FE209: the kernels of an operator refuse the dtypes of its operands."""

from fakexport.rules.rule import Rule

RULE = Rule(
    code="FE209",
    name="dtype_mismatch",
    severity="error",
    message="dtype mismatch between operands of an operator",
    why="""
A linear layer with float32 weights gets integers, or a half-precision convolution gets float32, or a
softmax gets integers. torch promotes dtypes in `add` or `mul` but not here: eager mode raises `mat1 and
mat2 must have the same dtype`, on the CPU and on CUDA. Other kernels do not support some dtypes at all:
there is no `relu` of bool, no comparison of complex numbers, on CUDA no matrix product of integers, and in
half precision no `torch.linalg.qr`, nor on the CPU an antialiased `interpolate`. A trace runs fake kernels,
which do not compare these dtypes. So `torch.export` succeeds, and the exported program raises when it runs.
""",
    how_to_repair="""
Convert the operands to one dtype before the call: `x.to(self.linear.weight.dtype)`. If the example inputs
have a dtype that the deployed model never gets, correct them in the factory. A model that creates float32
tensors whatever dtype it is asked for can be checked in it: `--dtype float32`. If the model is meant to run
in mixed precision, put the call under `torch.autocast`: the program keeps that region, whose operators
convert.
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
    repair="""
-        return self.linear(x)
+        return self.linear(x.to(self.linear.weight.dtype))
""",
    fails_on="never",
    links=("https://docs.pytorch.org/docs/stable/tensor_attributes.html#torch.dtype",),
)
