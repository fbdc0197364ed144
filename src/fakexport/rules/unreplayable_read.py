"""FE101: the constructor reads a tensor value that cannot be recomputed without data."""

from fakexport.rules.rule import Rule

RULE = Rule(
    code="FE101",
    name="unreplayable_read",
    severity="error",
    message="constructor reads a value that needs real data",
    why="""
The constructor asks a tensor for its value: `.item()`, `.tolist()`, `.numpy()`, `bool(...)`, `int(...)`.
Under fakexport, tensors are fake and have no data. Most such reads are answered anyway: fakexport has
recorded the operations that produced the tensor and replays only these on the CPU, so `torch.linspace(0,
0.1, 12).tolist()` returns its true values. A read cannot be answered if a step of that history cannot run
here, for instance an operator that has only a GPU kernel, or if the history starts outside the recording,
for instance with a fake tensor that was created elsewhere. A guessed value would silently build a
different model, so the build stops.
""",
    how_to_repair="""
Compute the value before the model is built and pass it in as a number, for instance from the model's
configuration. Or compute it with operators that run on a CPU. Or keep it as a tensor and never read it:
an attribute that `forward` multiplies by does not have to be a Python number.
""",
    failing_model="""
import torch
from torch import nn


@torch.library.custom_op("acme::calibrate", mutates_args=(), device_types="cuda")
def calibrate(table: torch.Tensor) -> torch.Tensor:
    return table.abs().amax()


@calibrate.register_fake
def _(table):
    return table.new_empty(())


class Quantized(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(8, 8)
        self.scale = calibrate(torch.arange(8.0)).item()  # <- FE101

    def forward(self, x):
        return self.linear(x / self.scale) * self.scale


def factory():
    return Quantized(), (torch.randn(2, 8),)
""",
    repair="""
-@torch.library.custom_op("acme::calibrate", mutates_args=(), device_types="cuda")
-def calibrate(table: torch.Tensor) -> torch.Tensor:
-    return table.abs().amax()
-
-
-@calibrate.register_fake
-def _(table):
-    return table.new_empty(())
-
-

-    def __init__(self):
+    def __init__(self, scale):

-        self.scale = calibrate(torch.arange(8.0)).item()
+        self.scale = scale

-    return Quantized(), (torch.randn(2, 8),)
+    return Quantized(scale=7.0), (torch.randn(2, 8),)
""",
    fails_on="build",
    torch_error="Could not run 'acme::calibrate'",
    target="H100",
    links=("https://docs.pytorch.org/docs/stable/torch.compiler_fake_tensor.html",),
)
