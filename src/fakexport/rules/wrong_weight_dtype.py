"""FE703: a checkpoint entry and its weight have different dtypes."""

from fakexport.rules.rule import Rule

RULE = Rule(
    code="FE703",
    name="wrong_weight_dtype",
    severity="error",
    message="dtype mismatch between checkpoint and model",
    why="""
An exported program fixes the dtype of every weight: in the operators that were traced for it, and often
in conversions next to them. A weight of another dtype makes it fail, or produce different numbers. Most
checkpoints are bfloat16, and a model that is built without a dtype is float32. `load_state_dict` would
copy into the existing weights and convert silently, at the cost of a copy of everything in memory.
""",
    how_to_repair="""
Export in the dtype of the checkpoint (`--dtype bfloat16`, or `dtype=torch.bfloat16`): then the weights
are mapped from the file and none is copied. Or convert while binding, `bind(program, checkpoint,
dtype=torch.float32)`, which takes memory for the converted weights.
""",
    failing_model="""
import torch
from torch import nn


def factory():
    return nn.Linear(8, 4), (torch.zeros(2, 8),)


def checkpoint():
    return {
        "weight": torch.zeros(4, 8, dtype=torch.bfloat16),  # <- FE703
        "bias": torch.zeros(4),
    }
""",
    repair="""
-        "weight": torch.zeros(4, 8, dtype=torch.bfloat16),
+        "weight": torch.zeros(4, 8, dtype=torch.float32),
""",
    fails_on="weights",
    fault="checkpoint",
)
