"""FE506: weights fit, and what a run needs next to them does not."""

from fakexport.rules.rule import Rule

RULE = Rule(
    code="FE506",
    name="peak_exceeds_memory",
    severity="warning",
    message="peak memory exceeds device memory",
    why="""
The weights fit on the device, but not together with what a call with these inputs holds at its peak: the
values between operators that are still needed (activations), the cache, inputs, outputs, and what the process
itself takes. The program would run out of memory (CUDA out of memory) at the line that is shown. The peak is
read off the exported program at the sizes of the example inputs; it is a lower bound, since workspaces of
kernels and fragmentation are not in it. It is a warning and not an error, because the program is correct, and
because smaller inputs may fit.
""",
    how_to_repair="""
Run `fakexport plan` with the same source and target: it lists the largest tensors at the peak, and `--max
batch` or `--max context` finds the largest size that fits. Often one value is most of it: the logits of every
token where only the last are needed (`logits_to_keep`), an attention mask or scores of the full context, a
float32 copy. Otherwise use smaller batches, more or larger devices, or a smaller dtype.
""",
    failing_model="""
import torch
from torch import nn


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.head = nn.Linear(1024, 262144, dtype=torch.bfloat16)

    def forward(self, hidden):
        logits = self.head(hidden)  # 65,536 tokens: 32 GiB
        return logits.float()  # 64 GiB more  # <- FE506


def factory():
    return Model(), (torch.empty(4, 16384, 1024, dtype=torch.bfloat16),)
""",
    repair="""
-        logits = self.head(hidden)  # 65,536 tokens: 32 GiB
+        logits = self.head(hidden[:, -1:])  # 4 tokens
""",
    fails_on="never",
    target="H100",
    fault="target",
)
