"""A model whose archive has a tie, buffers of both kinds, a literal, and a condition on a size."""

import torch
from torch import nn

WIDTH = 8


class Gated(nn.Module):
    """Weights, a tie, a buffer that is saved, one that is not, a literal, and a condition on a size."""

    def __init__(self):
        super().__init__()
        self.up = nn.Linear(4, WIDTH)
        self.down = nn.Linear(WIDTH, 4)
        self.tied = nn.Linear(4, WIDTH, bias=False)
        self.tied.weight = self.up.weight
        self.register_buffer("mean", torch.zeros(4))
        self.register_buffer("steps", torch.arange(4.0), persistent=False)

    def forward(self, x):
        hidden = torch.relu(self.up(x - self.mean) + self.tied(x))
        lowered = self.down(hidden)
        shifted = lowered + self.steps.to(lowered.device) * torch.tensor(0.5)
        return shifted if x.shape[1] % 2 == 0 else -shifted


def gated():
    return Gated(), (torch.zeros(2, 6, 4),)
