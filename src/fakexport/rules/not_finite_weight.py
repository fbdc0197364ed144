"""FE706: a weight contains NaN or infinity."""

from fakexport.rules.rule import Rule

RULE = Rule(
    code="FE706",
    name="not_finite_weight",
    severity="warning",
    message="weight contains NaN or infinity",
    why="""
Some elements of a checkpoint entry are not finite. One NaN in a parameter or buffer makes every output
that it touches NaN; an infinity does so as soon as it meets a zero or another infinity. It usually comes
from diverged training, from an overflow in a conversion to float16, or from a file that was not
completely written. It is a warning, because some models keep `-inf` in a buffer on purpose, as a mask.
Only the data shows it, so verification does not report it: `bind` scans the data, for large mapped
checkpoints only on request.
""",
    how_to_repair="""
Find out where the values come from: compare with the checkpoint before the conversion, and convert to
bfloat16, which has the range of float32, instead of float16.
""",
    failing_model="""
import torch
from torch import nn


def factory():
    return nn.Linear(8, 4), (torch.zeros(2, 8),)


def checkpoint():
    return {
        "weight": torch.full((4, 8), 1e6).half().float(),  # <- FE706
        "bias": torch.zeros(4),
    }
""",
    repair="""
-        "weight": torch.full((4, 8), 1e6).half().float(),
+        "weight": torch.full((4, 8), 1e6).bfloat16().float(),
""",
    fails_on="weights",
    fault="checkpoint",
)
