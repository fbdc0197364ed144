"""FE912: the program would lose what forward writes."""

from fakexport.rules.rule import Rule

RULE = Rule(
    code="FE912",
    name="write_lost",
    severity="error",
    message="program would lose what forward writes",
    why="""
An ExportedProgram knows its state by name: parameters, buffers and constants. Once it is bound, loaded or
moved to another device, each name has memory of its own, with a fixed shape and dtype. So it cannot keep
four kinds of writes, and `torch.export` does not report them:

- A write to a buffer that is a view of another one: the other one no longer changes with it.
- A write to a tensor that belongs to no module, such as a variable of a file or a NumPy array: nothing else
  sees it, and the trace itself writes too.
- An assignment of another shape or dtype to a tensor that `forward` also reads (`self.kept = torch.cat(
  (self.kept, x))`): every call would read the first value.
- A change of state in Python, such as a counter or a list, if the next call computes something else because
  of it: every call of a program is the first one. State that no call reads, and a cache of what weights
  alone decide, are the warning FE903.

To find the last kind, `forward` is traced several times in a row, and each call must return the same
function of its inputs and weights. So it does not matter where the state is: a default argument, a closure,
an object of a library, the environment, a file, a clock. If no change of state is seen, the code of installed
packages such as transformers is traced once.
""",
    how_to_repair="""
Register one buffer for the memory, and take views of it in `forward`. Make a tensor of a file a buffer of
the module that writes to it. Give a buffer that grows its greatest size, and write to a part of it; or take
it as an input and return it. Register a counter as a buffer, and write into it in place.
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
