"""FE705: a tied weight has several entries in the checkpoint."""

from fakexport.rules.rule import Rule

RULE = Rule(
    code="FE705",
    name="broken_tie",
    severity="warning",
    message="tied weight has several checkpoint entries",
    why="""
The model has one tensor under several names, such as the embedding and the head of a language model, and
the checkpoint has a separate entry for more than one of them. An exported program reads it under one
state dict key only. If the entries are equal, nothing is lost. If they differ, the checkpoint was trained
with untied weights, and with either entry the outputs are not those of its author. Headers do not show
which: verification warns, and binding compares the data of only these entries and refuses entries that
differ.
""",
    how_to_repair="""
If they are equal, keep one of them: `safetensors.torch.save_model` does so. If they differ, turn off the
tie in the configuration (`"tie_word_embeddings": false`) and export again.
""",
    failing_model="""
import torch
from torch import nn


class Language(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(16, 8)
        self.head = nn.Linear(8, 16, bias=False)
        self.head.weight = self.embed.weight

    def forward(self, tokens):
        return self.head(self.embed(tokens))


def factory():
    return Language(), (torch.zeros(2, 4, dtype=torch.int64),)


def checkpoint():
    return {
        "embed.weight": torch.zeros(16, 8),
        "head.weight": torch.ones(16, 8),  # <- FE705
    }
""",
    repair="""
-        "head.weight": torch.ones(16, 8),
""",
    fails_on="weights",
    fault="checkpoint",
)
