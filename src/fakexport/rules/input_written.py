"""FE902: forward writes into an input in place."""

from fakexport.rules.rule import Rule

RULE = Rule(
    code="FE902",
    name="input_written",
    severity="note",
    message="forward writes into an input in place",
    why="""
The model mutates one of its inputs in place. The exported program does the same: after each call the
caller's tensor has other values, and a second call with the same tensor returns another result. Some
runtimes do not write inputs back (ONNX Runtime), and others refuse read-only memory: there the program
behaves differently from the model.
""",
    how_to_repair="""
Compute a new tensor instead. If the write is intended, as for a key-value cache, leave it: the program
keeps it, and this is a note.
""",
    failing_model="""
import torch
from torch import nn


class Shift(nn.Module):
    def forward(self, x):
        x += 1  # <- FE902
        return x.sum()


def factory():
    return Shift(), (torch.zeros(2, 8),)
""",
    repair="""
-        x += 1
+        x = x + 1
""",
    fails_on="never",
)
