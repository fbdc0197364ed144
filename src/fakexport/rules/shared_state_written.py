"""FE912: forward writes to memory that the program shares with something else."""

from fakexport.rules.rule import Rule

RULE = Rule(
    code="FE912",
    name="shared_state_written",
    severity="error",
    message="forward writes to memory that is shared",
    why="""
An ExportedProgram knows its state by name: parameters, buffers and constants. Once it is bound, loaded or
moved to another device, each name has memory of its own. If `forward` writes to a buffer that is a view of
another one, the other one no longer changes with it, and results differ from eager mode without an error.
The same holds for a tensor that belongs to no module, such as a variable of a file: the trace itself
writes to it, and the program gets a copy that nothing else sees.
""",
    how_to_repair="""
Register one buffer for the memory, and take views of it in `forward`. Make a tensor of a file a buffer of
the module that writes to it.
""",
    failing_model="""
import torch
from torch import nn


class Window(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("whole", torch.zeros(8))
        self.register_buffer("first", self.whole[:4])

    def forward(self, x):
        self.first.add_(1)  # <- FE912
        return x + self.whole


def factory():
    return Window(), (torch.randn(2, 8),)
""",
    repair="""
-        self.register_buffer("first", self.whole[:4])

-        self.first.add_(1)
+        self.whole[:4].add_(1)
""",
    fails_on="capture",
    links=("https://docs.pytorch.org/docs/stable/tensor_view.html",),
)
