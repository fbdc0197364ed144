"""FE901: the program drops, averages or draws as in training."""

from fakexport.rules.rule import Rule

RULE = Rule(
    code="FE901",
    name="operator_in_training_mode",
    severity="warning",
    message="an operator runs in training mode",
    why="""
A program has one mode: the one that the model was in when it was captured. This operator was captured in
training mode: dropout zeroes values at random, batch norm takes the mean of the batch and changes its running
statistics, randomised activations draw. The exported program goes on doing so wherever it is deployed, and
there is no `.eval()` that could be called on it. Each call gives other numbers, and one sample's result
depends on the others of its batch.
""",
    how_to_repair="""
Call `.eval()` on the model before it is exported, in the factory. If the program is meant for training, leave
it as it is: the finding is a warning. Functions of `torch.nn.functional` do not know the model's mode: pass
`training=self.training`, or `dropout_p=self.p if self.training else 0.0`.
""",
    failing_model="""
import torch
from torch import nn


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(8, 8)

    def forward(self, x):
        return nn.functional.dropout(self.linear(x), 0.1, self.training)  # <- FE901


def factory():
    return Block(), (torch.randn(2, 8),)
""",
    repaired_model="""
import torch
from torch import nn


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(8, 8)

    def forward(self, x):
        return nn.functional.dropout(self.linear(x), 0.1, self.training)


def factory():
    return Block().eval(), (torch.randn(2, 8),)
""",
    fails_on="never",
    links=("https://docs.pytorch.org/docs/stable/generated/torch.nn.Module.html#torch.nn.Module.eval",),
)
