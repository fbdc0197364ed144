"""FE702: a checkpoint entry and its weight have different shapes."""

from fakexport.rules.rule import Rule

RULE = Rule(
    code="FE702",
    name="wrong_weight_shape",
    severity="error",
    message="shape mismatch between checkpoint and model",
    why="""
The key exists, but the shape differs (`load_state_dict`: `size mismatch`). The shapes of the weights are
fixed in an exported program: its operators were chosen and its symbolic sizes were solved for them, so a
weight of another shape would fail in the middle of a run, or broadcast and produce wrong numbers. If the
shapes show the cause, the diagnostic names it: a transposed matrix (`nn.Linear` keeps `[out, in]`, the
Conv1D of GPT-2 and Flax keep `[in, out]`), a vocabulary that was padded or resized, one shard of a
tensor-parallel checkpoint, or the configuration of another size of the model.
""",
    how_to_repair="""
Build the model with the configuration that belongs to the checkpoint, or convert the entry (transpose it,
concatenate the shards) and save the checkpoint again. fakexport does not guess: a square matrix would
hide a transposition.
""",
    failing_model="""
import torch
from torch import nn


def factory():
    return nn.Linear(8, 4), (torch.zeros(2, 8),)


def checkpoint():
    return {
        "weight": torch.zeros(8, 4),  # <- FE702
        "bias": torch.zeros(4),
    }
""",
    repair="""
-        "weight": torch.zeros(8, 4),
+        "weight": torch.zeros(8, 4).T,
""",
    fails_on="weights",
    fault="checkpoint",
)
