"""FE901: an operator of the program runs in training mode."""

from fakexport.rules.rule import Rule

RULE = Rule(
    code="FE901",
    name="operator_in_training_mode",
    severity="warning",
    message="operator runs in training mode",
    why="""
An exported program has one mode: the one that the model was in when it was traced. This operator was
traced in training mode: dropout zeroes values at random, batch norm uses the batch mean and updates its
running statistics (buffers, written in place), randomized activations draw. The exported program goes on
doing so wherever it is deployed, and `.eval()` does not change it. Each call returns different numbers,
and one sample's result depends on the others of its batch.
""",
    how_to_repair="""
Call `.eval()` on the model before it is exported, in the factory. If the program is meant for training,
leave it as it is: this is a warning. Functions of `torch.nn.functional` do not know the model's mode:
pass `training=self.training`, or `dropout_p=self.p if self.training else 0.0`.
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
    repair="""
-    return Block(), (torch.randn(2, 8),)
+    return Block().eval(), (torch.randn(2, 8),)
""",
    fails_on="never",
    links=("https://docs.pytorch.org/docs/stable/generated/torch.nn.Module.html#torch.nn.Module.eval",),
)
