"""FE504: an operator has no kernel on the target's device."""

from fakexport.rules.rule import Rule

RULE = Rule(
    code="FE504",
    name="missing_device_kernel",
    severity="error",
    message="operator has no kernel on the target's device",
    why="""
An operator may have a kernel for one device and none for another, or none for this dtype there. Models
handle this: their code checks which device a tensor is on, and takes another path. That decision was made
while tracing. A program that is retargeted to another kind of device still contains the first path, and
stops at this operator (`NotImplementedError`). For instance, `torch.histc` counts integers on a GPU but
not on a CPU, and transformers counts the tokens of each expert with it.
""",
    how_to_repair="""
Export the model for this device, instead of retargeting a program that was exported for another one. If
the model has no path of its own for the device, convert the operand: `torch.histc(x.float(), ...)`.
""",
    failing_model="""
import torch
from torch import nn


class Tokens(nn.Module):
    def forward(self, experts):
        counted = experts.float() if experts.device.type == "cpu" else experts.int()
        return torch.histc(counted, bins=8, min=0, max=7)  # <- FE504


def factory():
    return Tokens(), (torch.zeros(16, dtype=torch.int64, device="cuda:0"),)
""",
    repair="""
-        counted = experts.float() if experts.device.type == "cpu" else experts.int()
+        counted = experts.float()
""",
    fails_on="retarget",
    target="H100",
    fault="target",
)
