"""FE704: unexpected key in the checkpoint."""

from fakexport.rules.rule import Rule

RULE = Rule(
    code="FE704",
    name="unexpected_entry",
    severity="warning",
    message="unexpected key in checkpoint",
    why="""
An entry of the checkpoint is neither a weight of the model nor a part of one. Binding ignores it and is
still exact, since every weight has its own entry; so this is a warning. It is worth a look: the head of
another task, or the second half of a model of which one half was exported, is harmless. A tower that the
configuration switches off is not. Together with FE701 it means that the model and the checkpoint name the
same thing differently, and the likely cause is printed.
""",
    how_to_repair="""
Do nothing if the model is meant to be a part of what the checkpoint contains. Otherwise build the class
of the model that the checkpoint was saved from (`hf:config.json:LlamaForCausalLM`), or rename the entry.
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
    repair="""
-        "scale": torch.zeros(4),
""",
    fails_on="weights",
    fault="checkpoint",
)
