"""FE802: what ONNX has no word for."""

from fakexport.rules.rule import Rule

RULE = Rule(
    code="FE802",
    name="onnx_cannot_express",
    severity="error",
    message="ONNX cannot express a part of the program",
    why="""
ONNX is a fixed list of operators. `torch.onnx` has a translation for most of torch's, and the program has an
operator without one; those of a library of your own never have one. ONNX has no state either: what a program
writes into a buffer or into an input would be forgotten. Nor do its operators take complex numbers. The
program itself is sound, and runs in other forms; no file is written.
""",
    how_to_repair="""
Write the same with operators that ONNX has: a median is the middle of the sorted values. Give `compile_onnx`
of `fakexport.deploy.onnx` a translation of an operator of your own, a function of onnxscript:
`custom_translation_table={torch.ops.acme.scale.default: scale}`. Return what is written into a buffer as an
output, and take it as an input in the next call.
""",
    failing_model="""
import torch
from torch import nn


class Middle(nn.Module):
    def forward(self, x):
        return x.median(dim=-1).values  # <- FE802


def factory():
    return Middle(), (torch.randn(2, 5),)
""",
    repaired_model="""
import torch
from torch import nn


class Middle(nn.Module):
    def forward(self, x):
        return x.sort(dim=-1).values[..., (x.shape[-1] - 1) // 2]


def factory():
    return Middle(), (torch.randn(2, 5),)
""",
    fails_on="compile",
    form="onnx",
    fault="target",
    links=("https://docs.pytorch.org/docs/stable/onnx_export.html",),
)
