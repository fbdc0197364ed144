"""FE102: the model's constructor raised an error."""

from fakexport.rules.rule import Rule

RULE = Rule(
    code="FE102",
    name="construction_failed",
    severity="error",
    message="constructor raised an error",
    why="""
The factory, or a constructor that it calls, raised an error before there was a module to export. Often
the configuration is impossible, such as 16 channels in 3 attention heads, and the same error occurs
without fakexport. Sometimes the constructor does something that a fake tensor cannot do: take a data
pointer, load a state dict into itself, call into a C library. The original error is passed on as a note.
""",
    how_to_repair="""
Where a library's own default config cannot build the model, pass that of a published model. Else call the
factory in plain Python. If it fails there too, fix the arguments at the marked line. If it fails
only under fakexport, move the work that needs data out of the constructor, into a method that is called
once the weights are loaded.
""",
    failing_model="""
import torch
from torch import nn


class Encoder(nn.Module):
    def __init__(self, channels, heads):
        super().__init__()
        self.attention = nn.MultiheadAttention(channels, heads, batch_first=True)  # <- FE102

    def forward(self, x):
        return self.attention(x, x, x, need_weights=False)[0]


def factory():
    return Encoder(channels=16, heads=3), (torch.randn(2, 5, 16),)
""",
    repair="""
-    return Encoder(channels=16, heads=3), (torch.randn(2, 5, 16),)
+    return Encoder(channels=16, heads=4), (torch.randn(2, 5, 16),)
""",
    fails_on="build",
    torch_error="embed_dim must be divisible by num_heads",
)
