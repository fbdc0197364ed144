"""FE202: forward raised an error while it was traced."""

from fakexport.rules.rule import Rule

RULE = Rule(
    code="FE202",
    name="forward_failed",
    severity="error",
    message="forward raised an error while tracing",
    why="""
The model's `forward`, or an operator that it calls, raised an error that no more specific rule covers.
Fake tensors check shapes and dtypes as real ones do, so the usual cause is a fault that eager mode has
too: shapes that do not match, an example input of the wrong rank or dtype, a missing argument. The
original error is passed on as a note; the marked line is the innermost one that belongs to the model and
not to torch. The model is run once more without a trace: where eager mode raises the error at the same line,
the note says so, and the fault is in the model, its config or the inputs.
""",
    how_to_repair="""
Where eager mode raises the error too and the model is a library's default (`hf:MODEL_TYPE`), pass the
config of a published model: some defaults contradict themselves. A model that computes in float32
whatever it is asked for needs `--dtype float32`. Else read torch's message in the note, then compare the
shapes at the marked line with what the operator expects. If the example input is wrong, pass another one
with `--input`. If the error occurs only with fake tensors, the code does something that needs data: move
it out of `forward`, or wrap it in a custom operator with a fake kernel.
""",
    failing_model="""
import torch
from torch import nn


class Projection(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(8, 3))

    def forward(self, x):
        return x @ self.weight  # <- FE202


def factory():
    return Projection(), (torch.randn(2, 3),)
""",
    repair="""
-        return x @ self.weight
+        return x @ self.weight.T
""",
    fails_on="capture",
    torch_error="a and b must have same reduction dim",
    links=("https://docs.pytorch.org/docs/stable/export.programming_model.html",),
)
