"""FE102: the constructor raised."""

from fakexport.rules.rule import Rule

RULE = Rule(
    code="FE102",
    name="construction_failed",
    severity="error",
    message="the model's constructor raised an error",
    why="""
The factory or a constructor below it raised before there was a module to export. Often the configuration
asks for something impossible, such as 16 channels in 3 attention heads, and the same error comes without
fakexport. Sometimes the constructor does what a tensor without data cannot do: take a data pointer, load a
checkpoint into itself, call into a C library. The original error is passed on as a note.
""",
    how_to_repair="""
Call the factory in plain Python. If it fails there too, repair the arguments that the marked line gets.
If it fails only under fakexport, move the work that needs data out of the constructor, into a method that is
called when the weights are there.
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
    repaired_model="""
import torch
from torch import nn


class Encoder(nn.Module):
    def __init__(self, channels, heads):
        super().__init__()
        self.attention = nn.MultiheadAttention(channels, heads, batch_first=True)

    def forward(self, x):
        return self.attention(x, x, x, need_weights=False)[0]


def factory():
    return Encoder(channels=16, heads=4), (torch.randn(2, 5, 16),)
""",
    fails_on="build",
)
