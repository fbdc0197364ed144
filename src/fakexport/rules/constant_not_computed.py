"""FE603: the value of a constant of the program cannot be computed here."""

from fakexport.rules.rule import Rule

RULE = Rule(
    code="FE603",
    name="constant_not_computed",
    severity="warning",
    message="value of a constant cannot be computed here",
    why="""
An exported program carries what no checkpoint contains, non-persistent buffers and plain tensor
attributes, as constants. In a fake model they have no data; fakexport computes them from the operations
that it recorded in the constructor. For this constant that is not possible, and the note says why: an
operation has no CPU kernel, nothing was ever written into its memory (`torch.empty`), it started from a
tensor that was created elsewhere, it was changed while nothing was recording (a module that is edited
after `deferred_init`), or it takes more than 1 GiB. Any value would be a guess, so the constant has none:
the program is incomplete until you put one into `program.constants`.
""",
    how_to_repair="""
Compute the value with operators that run on a CPU, or write into the memory before the constructor
returns. A table too large to be computed here is too large to ship in a program: build it in `forward`
from its formula. Store what only the target device can compute in the checkpoint, as a persistent buffer.
Where the constant is what `forward` computes itself, such as `torch.arange`, look for another thread that
reads the stack frames of the one that traces (`sys._current_frames`, as profilers inside of the process
do): torch loses results then, and its own export refuses the program. End that thread before the check.
""",
    failing_model="""
import torch
from torch import nn


@torch.library.custom_op("acme::hadamard", mutates_args=(), device_types="cuda")
def hadamard(signs: torch.Tensor) -> torch.Tensor:
    return torch.outer(signs, signs)


@hadamard.register_fake
def _(signs):
    return signs.new_empty(signs.shape[0], signs.shape[0])


class Rotated(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(8, 8)
        signs = torch.tensor([1.0, -1.0]).repeat(4)
        self.register_buffer("rotation", hadamard(signs), persistent=False)

    def forward(self, x):
        return self.linear(x @ self.rotation)  # <- FE603


def factory():
    return Rotated(), (torch.randn(2, 8),)
""",
    repair="""
-
-
-@torch.library.custom_op("acme::hadamard", mutates_args=(), device_types="cuda")
-def hadamard(signs: torch.Tensor) -> torch.Tensor:
-    return torch.outer(signs, signs)
-
-
-@hadamard.register_fake
-def _(signs):
-    return signs.new_empty(signs.shape[0], signs.shape[0])

-        self.register_buffer("rotation", hadamard(signs), persistent=False)
+        self.register_buffer("rotation", torch.outer(signs, signs), persistent=False)
""",
    fails_on="never",
    target="H100",
    links=("https://docs.pytorch.org/docs/stable/torch.compiler_fake_tensor.html",),
)
