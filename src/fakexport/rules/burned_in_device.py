"""FE501: a program names the device that it was exported on."""

from fakexport.rules.rule import Rule

RULE = Rule(
    code="FE501",
    name="burned_in_device",
    severity="warning",
    message="a device is burned in: it is where the export ran",
    why="""
`torch.arange(n, device=x.device)` follows its input in Python. A trace knows the device of the example input
only and writes it down: `device=cpu`. The program is right as long as it stays there. If its weights and
inputs are moved to a GPU, this tensor stays behind, and the operator that takes it stops with `Expected all
tensors to be on the same device`. Nothing is wrong with the model.
""",
    how_to_repair="""
Put the whole program on the other device, `fakexport retarget model.pt2 --to cpu=cuda:0 -o gpu.pt2`: that
replaces every device which is written down, and proves the result. Or export for that device in the first
place. Or let the caller pass the tensor, so that the program names no device.
""",
    failing_model="""
import torch
from torch import nn


class Positions(nn.Module):
    def __init__(self):
        super().__init__()
        self.table = nn.Embedding(64, 8)

    def forward(self, x):
        places = torch.arange(x.shape[1], device=x.device)  # <- FE501
        return x + self.table(places)


def factory():
    return Positions(), (torch.zeros(2, 16, 8),)
""",
    repaired_model="""
import torch
from torch import nn


class Positions(nn.Module):
    def __init__(self):
        super().__init__()
        self.table = nn.Embedding(64, 8)

    def forward(self, x, places):
        return x + self.table(places)


def factory():
    return Positions(), (torch.zeros(2, 16, 8), torch.arange(16))
""",
    fails_on="retarget",
)
