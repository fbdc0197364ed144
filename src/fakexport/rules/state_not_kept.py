"""FE910: forward sets a seed or a default of torch, and the program does not."""

from fakexport.rules.rule import Rule

RULE = Rule(
    code="FE910",
    name="state_not_kept",
    severity="warning",
    message="forward sets a seed or setting of torch",
    why="""
`torch.manual_seed`, `torch.random.fork_rng`, `torch.default_generator.set_state` and
`torch.set_default_dtype` are calls of Python and no operators. They ran once, while the model was traced, and
the exported program does not repeat them: it draws different numbers than eager mode, or creates tensors of a
different dtype, without an error. A seed that `torch.initial_seed` returns is a constant of the program. A
`torch.Generator` of the model or of `forward` is an object that the program draws on from call to call, even
if `forward` seeds it each time, and a program with one cannot be saved.

The same holds for what chooses kernels: `sdpa_kernel`, `torch.set_float32_matmul_precision`, settings of
`torch.backends.cuda`. The program takes the kernels that are allowed where it runs, with other memory and
rounding. And for `torch.cuda.set_device` and `with torch.cuda.device(1)`: a tensor that is created with
`device="cuda"` is on the current device of each call.
""",
    how_to_repair="""
Set seeds and defaults outside of `forward`. Numbers that have to be the same in every call are constants:
draw them in the constructor and keep them as a buffer. Pass numbers with a seed of the caller as an input.
Where a dtype matters, name it in the call that creates the tensor. Choose kernels where the program runs:
around its call, or around its compilation.
""",
    failing_model="""
import torch
from torch import nn


class Noise(nn.Module):
    def forward(self, x):
        torch.manual_seed(0)  # <- FE910
        return x + torch.rand_like(x)


def factory():
    return Noise(), (torch.randn(2, 8),)
""",
    repair="""
+    def __init__(self):
+        super().__init__()
+        self.register_buffer("noise", torch.rand(2, 8))
+
     def forward(self, x):
-        torch.manual_seed(0)
-        return x + torch.rand_like(x)
+        return x + self.noise
""",
    fails_on="never",
    links=("https://docs.pytorch.org/docs/stable/notes/randomness.html",),
)
