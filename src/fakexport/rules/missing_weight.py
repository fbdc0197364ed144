"""FE701: missing key in the checkpoint."""

from fakexport.rules.rule import Rule

RULE = Rule(
    code="FE701",
    name="missing_weight",
    severity="error",
    message="missing key in checkpoint",
    why="""
A parameter or a persistent buffer of the model has no entry in the checkpoint, neither under its own name
nor under the name of a weight that it is tied to. `load_state_dict(strict=False)` and many loaders keep the
random initial values: the model runs, and its outputs mean nothing. fakexport binds all weights or none.
The exceptions are weights that a class of transformers says it does not save, such as Marian's tables of
positions: they are computed as its constructor does, and an archive has their values up to 4 MiB. Names
are read from the headers of the files, so no data is read. A checkpoint in the layout of the Hugging Face
hub is first converted as transformers does it: by its own tables, with its own operations. When a program
is bound, a constant without a value (FE601, FE602, FE603) counts as a weight.
""",
    how_to_repair="""
Read the likely cause, which is printed next to the names: another prefix (`module.` comes from
`DataParallel`, `_orig_mod.` from `torch.compile`), projections that are merged in one place and split in
the other, an old name. Rename or convert the entries and save the checkpoint again, or build the class of
the model that the checkpoint was saved from.
""",
    failing_model="""
import torch
from torch import nn


def factory():
    return nn.Linear(8, 4), (torch.zeros(2, 8),)


def checkpoint():
    return {
        "weight": torch.zeros(4, 8),  # <- FE701
    }
""",
    repair="""
         "weight": torch.zeros(4, 8),
+        "bias": torch.zeros(4),
""",
    fails_on="weights",
    fault="checkpoint",
    links=("https://docs.pytorch.org/docs/stable/generated/torch.nn.Module.html",),
)
