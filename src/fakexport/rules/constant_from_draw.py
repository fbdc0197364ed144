"""FE602: a constant of the program is a random tensor without a seed."""

from fakexport.rules.rule import Rule

RULE = Rule(
    code="FE602",
    name="constant_from_draw",
    severity="warning",
    message="constant is random and has no seed",
    why="""
The constructor draws random numbers and keeps them where no checkpoint stores them: as a plain attribute or
as a buffer with `persistent=False`. Each construction draws different ones, so two processes that load
the same state dict compute different results. `torch.export` of the real model stores the numbers of that
one construction in the program. A fake model has no such numbers, and any others would be a guess: the
constant has no value, and the program is incomplete until you put one into `program.constants`. With an
explicit seed, of the process or of the generator, the draw is part of the code and its value is
recovered. For a GPU that does not hold if the constructor draws on the CPU by name and on the default device
from one seed: a model that is built on the CPU draws both from one generator, and one that is built on the
GPU from two.
""",
    how_to_repair="""
Draw with your own seeded `torch.Generator`, as the repaired model does: its numbers are the same in each
process. If the numbers belong to the trained model (random projections, codebooks, noise that was fixed
before training), register them as a persistent buffer, so that the checkpoint contains them.
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
    repair="""
-        self.register_buffer("projection", torch.randn(8, 16), persistent=False)
+        seeded = torch.Generator().manual_seed(7)
+        self.register_buffer("projection", torch.randn(8, 16, generator=seeded), persistent=False)
""",
    fails_on="never",
    links=("https://docs.pytorch.org/docs/stable/notes/randomness.html",),
)
