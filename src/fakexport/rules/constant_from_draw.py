"""FE602: a constant of the program is a random draw that nobody seeded."""

from fakexport.rules.rule import Rule

RULE = Rule(
    code="FE602",
    name="constant_from_draw",
    severity="warning",
    message="a constant is a random draw without a seed",
    why="""
The constructor draws random numbers and keeps them where no checkpoint has them: as a plain attribute or as a
buffer with `persistent=False`. Each construction draws others, so that two processes that load the same
checkpoint compute different results. `torch.export` of the real model writes the numbers of that one
construction into the program. There are no such numbers in a fake model, and any others would be a guess: the
constant has no value, and the program is incomplete until somebody puts it into `program.constants`. With a
chosen seed, of the process or of the generator, the draw is part of the code and its value is recovered.
""",
    how_to_repair="""
Draw with a generator of your own that has a seed, as the repaired model does: its numbers are the same in
each process. Where the numbers belong to the trained model (random projections, codebooks, noise that was
fixed before the training), register them as a persistent buffer, so that the checkpoint has them.
""",
    failing_model="""
import torch
from torch import nn


class RandomFeatures(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(16, 4)
        self.register_buffer("projection", torch.randn(8, 16), persistent=False)

    def forward(self, x):
        return self.linear(torch.cos(x @ self.projection))  # <- FE602


def factory():
    return RandomFeatures(), (torch.randn(2, 8),)
""",
    repaired_model="""
import torch
from torch import nn


class RandomFeatures(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(16, 4)
        seeded = torch.Generator().manual_seed(7)
        self.register_buffer("projection", torch.randn(8, 16, generator=seeded), persistent=False)

    def forward(self, x):
        return self.linear(torch.cos(x @ self.projection))


def factory():
    return RandomFeatures(), (torch.randn(2, 8),)
""",
    fails_on="never",
    links=("https://docs.pytorch.org/docs/stable/notes/randomness.html",),
)
