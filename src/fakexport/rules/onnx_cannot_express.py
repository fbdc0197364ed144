"""FE802: ONNX cannot express a part of the program."""

from fakexport.rules.rule import Rule

RULE = Rule(
    code="FE802",
    name="onnx_cannot_express",
    severity="error",
    message="ONNX cannot express a part of the program",
    why="""
ONNX is a fixed list of operators. `torch.onnx` translates most of torch's operators, and the
ExportedProgram contains one without a translation; custom operators never have one. ONNX has no state
either: what a program writes into a buffer or into an input would be lost. Nor do its operators support
complex numbers. The program itself is correct, and runs in other formats; no file is written.
""",
    how_to_repair="""
Rewrite the line with operators that ONNX has: a median is the middle of the sorted values. Pass
`compile_onnx` of `fakexport.deploy.onnx` a translation of your custom operator, a function of onnxscript:
`custom_translation_table={torch.ops.acme.scale.default: scale}`. Return what is written into a buffer as
an output, and take it as an input in the next call.
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
    repair="""
-        return x.median(dim=-1).values
+        return x.sort(dim=-1).values[..., (x.shape[-1] - 1) // 2]
""",
    fails_on="compile",
    form="onnx",
    fault="target",
    links=("https://docs.pytorch.org/docs/stable/onnx_export.html",),
)
