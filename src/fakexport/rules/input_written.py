"""FE902: the program writes into its caller's tensors."""

from fakexport.rules.rule import Rule

RULE = Rule(
    code="FE902",
    name="input_written",
    severity="note",
    message="forward writes into an input",
    why="""
The model changes one of its inputs in place. The exported program does the same: after each call the caller's
tensor has other values, and a second call with the same tensor gives another result. Some runtimes do not
write inputs back (ONNX Runtime), and others refuse memory that is read-only: there the program behaves
otherwise than the model.
""",
    how_to_repair="""
Compute a new tensor instead. Where the write is meant, as for a key-value cache, leave it: the program keeps
it, and this is a note.
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
    repaired_model="""
import torch
from torch import nn


class Shift(nn.Module):
    def forward(self, x):
        x = x + 1
        return x.sum()


def factory():
    return Shift(), (torch.zeros(2, 8),)
""",
    fails_on="never",
)
