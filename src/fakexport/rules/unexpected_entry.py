"""FE704: the checkpoint has an entry that nothing wants."""

from fakexport.rules.rule import Rule

RULE = Rule(
    code="FE704",
    name="unexpected_entry",
    severity="warning",
    message="the checkpoint has an entry that no weight of the model wants",
    why="""
An entry is no weight of the model, and no part of one either. The binding leaves it out and is exact all
the same, since every weight has an entry of its own; so this is a warning. It is worth a look: the head of
another task, or the second half of a model of which one half was exported, is harmless. A tower that the
configuration switches off is not. Together with FE701 it tells that the two sides name one thing
differently, and the likely cause is given.
""",
    how_to_repair="""
Nothing, if the model is meant to be a part of what the checkpoint holds. Otherwise build the class of the
model that the checkpoint was saved from (`hf:config.json:LlamaForCausalLM`), or rename the entry.
""",
    failing_model="""
import torch
from torch import nn


def factory():
    return nn.Linear(8, 4), (torch.zeros(2, 8),)


def checkpoint():
    return {
        "weight": torch.zeros(4, 8),
        "bias": torch.zeros(4),
        "scale": torch.zeros(4),  # <- FE704
    }
""",
    repaired_model="""
import torch
from torch import nn


def factory():
    return nn.Linear(8, 4), (torch.zeros(2, 8),)


def checkpoint():
    return {
        "weight": torch.zeros(4, 8),
        "bias": torch.zeros(4),
    }
""",
    fails_on="weights",
    fault="checkpoint",
)
