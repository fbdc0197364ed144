"""FE501: the graph hard-codes the device that the export ran on."""

from fakexport.rules.rule import Rule

RULE = Rule(
    code="FE501",
    name="hard_coded_device",
    severity="warning",
    message="graph hard-codes the device the export ran on",
    why="""
`torch.arange(n, device=x.device)` follows its input in Python. A trace knows only the device of the
example input and hard-codes it in the graph: `device=cpu`. The program is correct as long as it stays
there. If its weights and inputs are moved to a GPU, this tensor stays on the CPU, and the operator that
takes it raises `Expected all tensors to be on the same device`. Nothing is wrong with the model.
""",
    how_to_repair="""
Retarget the whole program, `fakexport retarget model.pt2 --to cpu=cuda:0 -o gpu.pt2`: that replaces every
hard-coded device, and proves the result. Or export for that device in the first place. Or let the caller
pass the tensor, so that the graph contains no device.
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
    repair="""
-    def forward(self, x):
-        places = torch.arange(x.shape[1], device=x.device)
+    def forward(self, x, places):

-    return Positions(), (torch.zeros(2, 16, 8),)
+    return Positions(), (torch.zeros(2, 16, 8), torch.arange(16))
""",
    fails_on="retarget",
)
