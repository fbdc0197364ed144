"""FE504: an operator has no kernel on the device of the target."""

from fakexport.rules.rule import Rule

RULE = Rule(
    code="FE504",
    name="missing_device_kernel",
    severity="error",
    message="an operator has no kernel for these tensors on the target's device",
    why="""
An operator may have a kernel for one device and none for another, or none for this dtype there. Models know:
their code asks on which device a tensor is, and takes another way. That decision was made when the program
was exported. A program that is put on another device later still has the first way in it, and stops at this
operator. `torch.histc` counts integers on a GPU and not on a CPU, for instance, and transformers counts the
tokens of each expert with it.
""",
    how_to_repair="""
Export the model for this device, instead of retargeting the program of another one. If the model has no way
of its own for the device, let it convert: `torch.histc(x.float(), ...)`.
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
    repaired_model="""
import torch
from torch import nn


class Tokens(nn.Module):
    def forward(self, experts):
        counted = experts.float()
        return torch.histc(counted, bins=8, min=0, max=7)


def factory():
    return Tokens(), (torch.zeros(16, dtype=torch.int64, device="cuda:0"),)
""",
    fails_on="retarget",
    target="H100",
    fault="target",
)
