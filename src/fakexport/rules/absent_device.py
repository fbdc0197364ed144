"""FE505: the model hard-codes a device that the target does not have."""

from fakexport.rules.rule import Rule

RULE = Rule(
    code="FE505",
    name="absent_device",
    severity="error",
    message="hard-coded device does not exist on the target",
    why="""
A hard-coded device (`device="cuda:3"`, `.to("cuda")`, `.cuda()`, `torch.device("mps")`, a
`torch.Generator(device="cuda")`) exists on some machines only. On a machine without it the line raises
`CUDA error: invalid device ordinal`, or `Torch not compiled with CUDA enabled` where there is no GPU at
all. A fake tensor can be put on any device, so without this check the export would succeed and produce a
program that no machine of the target can run. Calls such as `torch.cuda.is_available()` and
`torch.cuda.device_count()` are answered from the target, and an error that the model catches (`except
(RuntimeError, AssertionError)`) takes the same path as on that machine.
""",
    how_to_repair="""
Take the device from an existing tensor: `device=x.device`, or that of a weight. In a constructor, leave
the device out: the target's default device is used, and `--device-map` places the modules. Ask
`torch.cuda.is_available()` before naming a GPU. If the device is intended, check a target that has it:
`--target 4xH100` has `cuda:3`.
""",
    failing_model="""
import torch
from torch import nn


class Shifted(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(8, 8)

    def forward(self, x):
        shift = torch.ones(8, device="cuda:3")  # <- FE505
        return self.linear(x) + shift.to(x.device)


def factory():
    return Shifted(), (torch.zeros(2, 8),)
""",
    repair="""
-        shift = torch.ones(8, device="cuda:3")
-        return self.linear(x) + shift.to(x.device)
+        shift = torch.ones(8, device=x.device)
+        return self.linear(x) + shift
""",
    fails_on="capture",
    target="H100",
)
