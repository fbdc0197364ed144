"""FE502: an operator gets tensors on different devices."""

from fakexport.rules.rule import Rule

RULE = Rule(
    code="FE502",
    name="tensors_on_different_devices",
    severity="error",
    message="device mismatch between tensors of an operator",
    why="""
Operators work on one device. On the target, some of this operator's tensors are on one device and some on
another, and torch moves nothing by itself (a 0-d CPU tensor is the usual exception). On a machine with a
single device the fault often cannot be seen: everything is on the CPU, and the export succeeds. It
appears where the model is deployed, as `Expected all tensors to be on the same device`.
""",
    how_to_repair="""
Create the tensor on the device where it is used: `device=x.device` for one that `forward` creates, a
buffer or a parameter for one that the constructor creates, so that it follows the module. If the weights
are meant to be on different devices, move the data where it crosses over: `table.to(x.device)`. With a
device map, put both modules on the same device.
""",
    failing_model="""
import torch
from torch import nn


class Split(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.empty(8, 8, device="cuda:0"))
        self.table = nn.Parameter(torch.empty(8, device="cpu"))

    def forward(self, x):
        projected = x @ self.weight
        return projected + self.table  # <- FE502


def factory():
    return Split(), (torch.empty(2, 8, device="cuda:0"),)
""",
    repair="""
-        return projected + self.table
+        return projected + self.table.to(x.device)
""",
    fails_on="capture",
    torch_error="at least two devices",
    target="cpu+H100",
    links=("https://docs.pytorch.org/docs/stable/notes/cuda.html",),
)
